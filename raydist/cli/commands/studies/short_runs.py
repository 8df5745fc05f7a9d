"""Runs a job for some steps, and reads what its tasks reported."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raydist.cli import running
from raydist.cli.job_options import (
    count_option,
    given_options,
    job_options,
    json_option,
    module_option,
    target_of,
)
from raydist.cli.screen import output, standard_streams
from raydist.errors import MistakeError, RaydistError, RunCancelledError
from raydist.metrics.records import Scope
from raydist.planning.batch_sizes import batch_sizes_of
from raydist.runs.scaling import Measurement, TaskReadings, measured
from raydist.runs.strategies_compared import LossCurve
from raydist.spec.params import ParamTexts
from raydist.spec.result import CANCELLED_EXIT_CODE
from raydist.spec.status import RunState
from raydist.spec.tasks import TaskType

if TYPE_CHECKING:
    from raydist import RunHandle
    from raydist.metrics.curves import Series
    from raydist.planning.plan import Plan
    from raydist.spec.params import ParamTexts
    from raydist.spec.result import RunResult
    from raydist.storage.run_storage import RunStorage

# Options of a run that these commands set themselves.
_SET_HERE = ("resume", "detach", "on_end", "mlflow", "keep_runs", "keep_best", "export")
# A task reports its values twice a second: fewer reports say little.
MIN_MEASURED_S = 10.0
_POLL_S = 0.2
_TOO_SHORT = ", before it was stopped: a longer training, with more epochs, is measured better"
# What has no effect on the speed of the steps, and would do something that is not wanted of a short run.
_WITHOUT: dict[str, Any] = {
    **{"on_end": None, "mlflow": None, "keep_runs": None, "keep_best": None},
    **{"resume": False, "detach": False, "export": False},
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def study_options(*, without: Iterable[str] = ()) -> Callable[[_Function], _Function]:
    """Adds the job, `--steps`, `--csv`, `--json`, and the other options of a run."""

    def add(function: _Function) -> _Function:
        for one in (
            json_option,
            job_options(without=[*_SET_HERE, *without]),
            click.option(
                "--csv", "csv_path", metavar="FILE", type=click.Path(path_type=Path), help="Also write a CSV."
            ),
            count_option(
                "--steps",
                "Steps after which each run is stopped, once it has trained for 10 s.",
                metavar="STEPS",
                default=200,
            ),
            module_option,
            click.argument("job", metavar="JOB"),
        ):
            function = one(function)
        return function

    return add


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run that is asked for.

    Attributes:
      own: The options of this run alone.
    """

    name: str
    own: Mapping[str, Any]
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class ShortRun:
    """One run that was made: how fast it was, and its loss."""

    plan: Plan
    measurement: Measurement
    curve: LossCurve


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is said of some runs.

    Attributes:
      answer: What `--json` prints; its `runs` are the rows of the CSV.
      headers, cells: The table.
      sentence: Below the table; None for nothing.
    """

    answer: Mapping[str, Any]
    headers: Sequence[str]
    cells: Sequence[Sequence[object]]
    sentence: str | None


@dataclass(frozen=True, kw_only=True)
class JobRuns:
    """The runs of one job that a command compares.

    Attributes:
      options: Those that were given for all runs.
    """

    job: str
    config: Path | None
    params: ParamTexts
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        job: str,
        *,
        is_module: bool,
        config: Path | None,
        param_texts: Sequence[str],
        options: Mapping[str, Any],
    ) -> JobRuns:
        """Takes what `study_options` gives a command."""
        return cls(
            job=target_of(job, is_module=is_module),
            config=config,
            params=ParamTexts.parse(param_texts),
            options=given_options(options),
        )

    def case(self, name: str, **own: Any) -> Case:
        """Returns a run with options of its own; raises what a person has to fix."""
        return Case(name=name, own=own, plan=self._plan(**own))

    def _plan(self, **own: Any) -> Plan:
        from raydist import api

        return api.plan(
            self.job, config=self.config, params=self.params, **{**self.options, **_WITHOUT, **own}
        )

    def measure(self, case: Case, *, study: str, num_steps: int) -> ShortRun:
        """Runs the job until it has made `num_steps`, or ends before.

        Args:
          study: What the names of all runs begin with.

        Raises:
          RunCancelledError: Something else stopped it. TrainingError, ClusterError: It failed.
        """
        from raydist import api
        from raydist.storage.run_storage import open_run

        name, plan = case.name, case.plan
        run = f"{study}-{name.replace(' ', '-')}"
        output.show(f"{name}: run {run}", is_error=True)
        told = _Told()
        handle = api.submit(
            self.job,
            config=self.config,
            params=self.params,
            on_event=told.take,
            **{**self.options, **_WITHOUT, **case.own, "name": run},
        )
        result = _stopped_after(handle, num_steps=num_steps)
        if result.state is RunState.SUCCEEDED:
            output.show(f"note: {name} ended after {result.steps} steps{_TOO_SHORT}", is_error=True)
        sizes = batch_sizes_of(plan)
        batch = None if sizes is None else sizes.size
        workers = [one for one in result.tasks if one.task.task_type is TaskType.WORKER]
        memory = [one.peak_memory_bytes for one in workers if one.peak_memory_bytes]
        found = Measurement(
            name=name,
            run=run,
            state=result.state.value,
            strategy=result.strategy,
            workers=plan.num_workers,
            num_hosts=len({one.host for one in workers}) or 1,
            num_cores=int(plan.inventory.num_cpus),
            has_gpus=any(role.resources.num_gpus for role in plan.roles),
            steps=result.steps,
            memory_bytes=max(memory, default=None),
            batch=batch,
            **measured(_readings(open_run(plan.job.storage, run=run), told.curve), batch=batch),
        )
        return ShortRun(plan=plan, measurement=found, curve=told.curve)


class _Told:
    """The chief's loss by step, as the run tells it: the last values of a stopped run may not be stored."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float, float | None]] = []

    @property
    def curve(self) -> LossCurve:
        begun_s = self._points[0][1] if self._points else 0.0
        return LossCurve(
            steps=[step for step, _, _ in self._points],
            seconds=[at_s - begun_s for _, at_s, _ in self._points],
            losses=[loss for _, _, loss in self._points],
        )

    def take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress" and event["step"] > (self._points[-1][0] if self._points else 0):
            self._points.append((event["step"], event["at_s"], event["metrics"].get("loss")))


def _stopped_after(handle: RunHandle, *, num_steps: int) -> RunResult:
    """Waits until the run has made its steps, stops it, and returns its result."""
    is_done, first_seen_s = False, None
    try:
        while not (is_done or (status := handle.status()).state.is_terminal):
            time.sleep(_POLL_S)
            if first_seen_s is None and status.steps:
                first_seen_s = time.monotonic()
            is_long = first_seen_s is not None and time.monotonic() - first_seen_s >= MIN_MEASURED_S
            is_done = is_long and status.steps >= num_steps
    finally:
        handle.stop()
        with contextlib.suppress(RunCancelledError):
            handle.result()
    result = handle.status()
    if not is_done and result.state is RunState.CANCELLED:
        raise RunCancelledError(f"run {handle.name} was stopped before it had made its steps")
    return result


def _readings(run: RunStorage, curve: LossCurve) -> dict[str, TaskReadings]:
    """Returns what each task stored; of parameter servers, where none does, the steps that the chief told."""
    from raydist.metrics.curves import series_of
    from raydist.metrics.reading import read_columns

    found: dict[str, dict[str, Series]] = {}
    for one in series_of(read_columns(run, scope=Scope.LOCAL), scope=Scope.LOCAL):
        if not one.is_repeated:
            found.setdefault(one.task, {})[one.name] = one
    if not found:
        return {"chief/0": TaskReadings(steps=curve.steps, times=curve.seconds)}
    return {task: _readings_of(by_name) for task, by_name in found.items()}


def _readings_of(by_name: Mapping[str, Series]) -> TaskReadings:
    def values(name: str) -> list[float]:
        one = by_name.get(name)
        return [] if one is None else one.values.tolist()

    longest = max(by_name.values(), key=len)
    return TaskReadings(
        steps=longest.steps.tolist(),
        times=longest.times.tolist(),
        examples_per_s=values("examples_per_s"),
        input_wait=values("input_wait"),
        collective_wait=values("collective_wait"),
    )


def run_each(
    runs: JobRuns,
    cases: Sequence[Case],
    compare: Callable[[Sequence[ShortRun]], Comparison],
    *,
    num_steps: int,
    csv_path: Path | None,
    is_json: bool,
) -> int:
    """Makes each run, prints what they say, and returns the exit code.

    Ctrl-C and a run that fails end it, after what was found up to then is printed.
    """
    if csv_path is not None:
        check_writable(csv_path, option="--csv")
    standard_streams.tolerate_failures()
    found: list[ShortRun] = []
    error: RaydistError | KeyboardInterrupt | None = None
    try:
        with output.stdout_kept_for_json(is_json), running.interrupts():
            for case in cases:
                found.append(runs.measure(case, study=cases[0].plan.job.name, num_steps=num_steps))
    except (RaydistError, KeyboardInterrupt) as ended:
        if not found:
            raise
        error = ended
    comparison = compare(found)
    if csv_path is not None:
        write_file(csv_path, _csv_text(comparison.answer["runs"]), option="--csv")
    if isinstance(error, KeyboardInterrupt):
        output.show(f"stopped by Ctrl-C after {len(found)} of {len(cases)} runs", is_error=True)
    if not is_json:
        output.print_table(comparison.headers, comparison.cells)
        if comparison.sentence is not None:
            output.show(comparison.sentence)
    elif not isinstance(error, RaydistError):
        output.print_json(comparison.answer)
    if isinstance(error, RaydistError):
        return output.print_raydist_error(error, is_json=is_json, found=comparison.answer)
    return 0 if error is None else CANCELLED_EXIT_CODE


def check_writable(path: Path, *, option: str) -> None:
    """Raises MistakeError for a file that cannot be written, before there is anything to lose."""
    place = path if path.exists() else path.parent
    if not place.exists() or path.is_dir() or not os.access(place, os.W_OK):
        code = errno.ENOENT if not place.exists() else errno.EISDIR if path.is_dir() else errno.EACCES
        raise _unwritable(path, os.strerror(code), option)


def write_file(path: Path, text: str, *, option: str) -> None:
    """Writes what an option names; raises MistakeError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error), option) from error


def _unwritable(path: Path, reason: str, option: str) -> MistakeError:
    return MistakeError(f"{path} cannot be written: {reason}; choose another with {option}")


def _csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows as CSV, with a line of names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
