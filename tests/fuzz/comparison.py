"""Compares what a cluster makes of random programs with what plain Keras makes of them on one device."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.fuzz.loops import PREFIX, Loop, loop_of
from tests.fuzz.program import Program, program_of
from tests.programs.bare import run_bare
from tests.programs.in_turn import Done, run_programs
from tests.programs.outcome import Outcome
from tests.support.processes import Cluster

# float32: what rounding can make of a dozen steps.
ATOL = {"float64": 1e-9, "float32": 2e-4}
CLUSTERS: Mapping[str, Mapping[str, object]] = {
    "one_device": {},
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "central_storage": {"strategy": "central_storage", "devices": 2},
    "2": {"strategy": "multi_worker_mirrored", "workers": 2},
    "3": {"strategy": "multi_worker_mirrored", "workers": 3},
    "2_unequal": {"strategy": "multi_worker_mirrored", "workers": 2, "shares": (3, 1)},
    "parameter_server": {"strategy": "parameter_server", "workers": 1, "ps": 1},
    "parameter_server_3": {"strategy": "parameter_server", "workers": 3, "ps": 1},
}
# Pieces of the notes that say why a program's results are not those of one device.
EXPLAINING = (
    "random numbers",
    "on through the next pass",
    "--sync-batchnorm",
    "could not be shown",
    "compares the examples",
)
# Of those that say so of what is shown alone.
OF_WHAT_IS_SHOWN = ("depends on how a batch is divided", "whether evaluations show")


# Of errors that say what is not supported.
REFUSALS = ("tf_keras's Nadam trains",)

# Of errors of Keras's own, with metrics that plain tf_keras leaves out where a step of the user's own is all
# there is: R2Score in float64.
OF_KERAS = ("Input 'e' of 'SelectV2' Op has type float64",)

# What none of these programs gives a reason to say.
FALSE_ALARMS = ("from the other workers'",)


class Verdict(enum.Enum):
    """What became of a program.

    EQUAL: Everything is as plain Keras has it.
    TOLD: Something differs, and a note says so.
    EXPLAINED: Something differs, and the guide's page of limits says so.
    DIFFERENT: Something differs, and nothing says so.
    FAILED: It failed, and plain Keras does not.
    ALARMED: Everything is as plain Keras has it, and a note says that something is not.
    UNUSABLE: Plain Keras fails.
    """

    EQUAL = "equal"
    TOLD = "told"
    EXPLAINED = "explained"
    DIFFERENT = "different"
    FAILED = "failed"
    ALARMED = "alarmed"
    UNUSABLE = "unusable"

    @property
    def is_defect(self) -> bool:
        return self in (Verdict.DIFFERENT, Verdict.FAILED, Verdict.ALARMED)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a program, and how that shows."""

    program: Program | Loop
    verdict: Verdict
    details: str = ""


def compare(names: Sequence[str], *, keras: str, cluster: str) -> list[Result]:
    """Runs programs bare and on one of CLUSTERS; returns a result of each."""
    find = "tests.fuzz.training:train_function"
    bare = run_bare(tuple(names), keras, find)
    usable = [name for name in names if bare[name].outcome is not None]
    shared = run_programs(
        usable,
        Cluster(**CLUSTERS[cluster], keras=keras),  # type: ignore[arg-type]
        find=find,
    )
    return [
        _judge(of_name(name), bare[name], shared[name], keras=keras, cluster=cluster)
        if name in shared
        else Result(program=of_name(name), verdict=Verdict.UNUSABLE, details=_end(bare[name]))
        for name in names
    ]


def of_name(name: str) -> Program | Loop:
    """Returns the program or loop of a name; raises ValueError for one that is none."""
    return loop_of(name) if name.startswith(PREFIX) else program_of(name)


def shrink(program: Program | Loop, *, keras: str, cluster: str, verdict: Verdict) -> Program | Loop:
    """Returns the simplest program with the same verdict that leaving out one axis after another finds."""
    while True:
        simpler = [one.name for one in program.simpler()]
        results = compare(simpler, keras=keras, cluster=cluster) if simpler else []
        found = [one.program for one in results if one.verdict is verdict]
        if not found:
            return program
        program = found[0]


def _judge(program: Program | Loop, bare: Done, tasks: Sequence[Done], *, keras: str, cluster: str) -> Result:
    if isinstance(program, Program) and program.is_still:
        shown = [dataclasses.replace(one, outcome=_counted(one.outcome)) for one in (bare, *tasks)]
        bare, tasks = shown[0], shown[1:]
    failed = [task for task in tasks if task.error]
    if failed and any(words in str(failed[0].error) for words in OF_KERAS):
        return Result(program=program, verdict=Verdict.UNUSABLE, details=_end(failed[0]))
    if failed and any(words in str(failed[0].error) for words in REFUSALS):
        return Result(program=program, verdict=Verdict.TOLD, details=_end(failed[0]))
    if failed:
        return Result(program=program, verdict=Verdict.FAILED, details=_end(failed[0]))
    differences = [one for task in tasks if (one := difference(program, bare.trained, task.trained))]
    notes = [note for task in tasks for note in task.notes]
    if not differences:
        alarms = [note for note in notes if any(words in note for words in FALSE_ALARMS)]
        verdict = Verdict.ALARMED if alarms else Verdict.EQUAL
        return Result(program=program, verdict=verdict, details="\n".join(alarms))
    told = [note for note in notes if any(words in note for words in EXPLAINING)]
    if told:
        return Result(program=program, verdict=Verdict.TOLD, details=told[0])

    def is_equal_but_for(kept: Callable[[str], bool]) -> bool:
        return not any(
            difference(program, _only(bare.trained, kept), _only(one.trained, kept)) for one in tasks
        )

    told = [note for note in notes if any(words in note for words in OF_WHAT_IS_SHOWN)]
    if told and is_equal_but_for(lambda name: False):
        return Result(program=program, verdict=Verdict.TOLD, details=told[0])
    if keras == "legacy" and _is_sum(program) and is_equal_but_for(lambda name: "loss" not in name):
        limit = "tf_keras weighs a replica's sum by its examples"
        return Result(program=program, verdict=Verdict.EXPLAINED, details=limit)
    if (limit := _limit_of(program, keras=keras, cluster=cluster)) is not None:
        return Result(program=program, verdict=Verdict.EXPLAINED, details=limit)
    return Result(program=program, verdict=Verdict.DIFFERENT, details="\n".join([differences[0], *notes]))


def _is_sum(program: Program | Loop) -> bool:
    return isinstance(program, Program) and program.reduction == "sum"


def _counted(outcome: Outcome | None) -> Outcome | None:
    """Leaves out what an epoch shows of the batches that it happens to have, but not their number."""
    if outcome is None:
        return None
    shown = {
        name: one
        for name, one in outcome.history.items()
        if not name.startswith("fit ") or name.endswith("rows")
    }
    return dataclasses.replace(outcome, history=shown)


def _only(outcome: Outcome, is_kept: Callable[[str], bool]) -> Outcome:
    shown = {name: one for name, one in outcome.history.items() if is_kept(name)}
    return dataclasses.replace(outcome, history=shown)


def _limit_of(program: Program | Loop, *, keras: str, cluster: str) -> str | None:
    """Returns the row of limits.md that a program's results may differ by, in short."""
    if isinstance(program, Loop):
        is_nadam = keras == "legacy" and program.program.optimizer == "nadam"
        return "tf_keras's Nadam counts updates while they are traced" if is_nadam else None
    if keras == "3" and program.data == "filtered" and program.steps_per_execution == 1:
        return "Keras 3 counts a step too many at the end of data of unknown length"
    if keras == "legacy" and program.data == "filtered" and not program.steps_per_epoch:
        return "tf_keras counts a step too many at the first end of data of unknown length"
    is_split = program.data == "arrays" and program.validation == "split"
    num_examples = program.num_examples * 3 // 4 if is_split else program.num_examples
    if keras == "legacy" and cluster == "central_storage" and num_examples % program.batch_size == 1:
        return "a replica without examples counts one under central_storage with tf_keras"
    if keras == "legacy" and program.optimizer == "nadam":
        return "tf_keras's Nadam counts updates while they are traced"
    is_part = program.data in ("arrays", "sequence") and program.steps_per_epoch and program.call == "ctx.fit"
    if keras == "3" and is_part:
        return "ctx.fit continues with the next pass where Keras 3 ends an epoch with the data"
    return None


def difference(program: Program | Loop, expected: Outcome, found: Outcome) -> str:
    """Returns how an outcome differs, empty where it does not."""
    try:
        found.check_history(expected, atol=ATOL[program.dtype])
        found.check_variables(expected, atol=ATOL[program.dtype])
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " ".join(" ".join(lines[:12]).split())[:600]
    return ""


def _end(done: Done) -> str:
    lines = [line for line in str(done.error).splitlines() if line.strip()]
    return "\n".join(lines[-12:])
