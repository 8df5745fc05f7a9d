"""Tasks die at each place of a step's life: every bit is that of the undisturbed run.

A run has one way of training. It dies at the first place of its list in attempt 0, at the second in
attempt 1, and so on. What each step shows tells after which of them something is different.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Raydist
from tests.support.kill_places import FOLDER, NUM_STEPS, SAVED_EVERY, Place, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

_CODE = [Path(__file__).parents[1] / "support" / name for name in ("kill_places.py", "kill_ways.py")]
_CALLBACKS = "raydist.training.trainers.run_callbacks"
_CHECKPOINTS = "raydist.training.checkpointing.checkpoints:TaskCheckpoints"
_LOOP = "raydist.training.trainers.custom_loop"
_OWN = "kill_places:passes"
_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_STORAGE = "raydist.storage.filesystem:Storage"

_START: dict[str, Any] = {"step": None}
_LAST: dict[str, Any] = {"step": NUM_STEPS}
PLACES = {
    # On the way to the first step. After another place it is a second death, during the recovery.
    "before the strategy": Place(at=_OWN, text="before the strategy", **_START),
    "before the strategy, the chief": Place(at=_OWN, text="before the strategy", task=0, **_START),
    "as a fit begins": Place(at=f"{_CALLBACKS}:_Progress.on_train_begin", **_START),
    "as a loop begins": Place(at=f"{_LOOP}:run_steps", **_START),
    "as the newest state is read": Place(at=f"{_CHECKPOINTS}.newest", task=0, **_START),
    "before the restore": Place(at=f"{_CHECKPOINTS}.restore", **_START),
    "in the restore": Place(
        at="raydist.training.checkpointing.variables:_Whole.write", task=0, nth=3, **_START
    ),
    "after the restore": Place(at=f"{_CHECKPOINTS}.restore", when="after", **_START),
    "as callbacks are restored": Place(
        at="raydist.training.trainers.fit_position:FitPosition.restore_callbacks", task=0, **_START
    ),
    # A step: the others wait in its all-reduce.
    "before the call": Place(at=_OWN, text="batch begin"),
    "before the call, the chief": Place(at=_OWN, text="batch begin", task=0),
    "in the data": Place(at=_OWN, text="in the data"),
    "in a step": Place(at=_OWN, text="in a step"),
    "in a step, the chief": Place(at=_OWN, text="in a step", task=0),
    "in a step, by its exit": Place(at=_OWN, text="in a step", how="exit"),
    "in a step, stopped": Place(at=_OWN, text="in a step", how="SIGSTOP"),
    "in the collective": Place(at=_OWN, text="in a step", task=0, victim="peer"),
    "in the collective, the chief": Place(at=_OWN, text="in a step", victim="peer"),
    "in a step, both": Place(at=_OWN, text="in a step", victim="both"),
    "in a step, the agent": Place(at=_OWN, text="in a step", victim="agent"),
    "in a step, the chief's agent": Place(at=_OWN, text="in a step", task=0, victim="agent"),
    "in a step, the fork server": Place(at=_OWN, text="in a step", victim="fork server"),
    "in a step, the controller": Place(at=_OWN, text="in a step", victim="controller"),
    "after apply": Place(at=_OWN, text="after apply"),
    "after apply, the chief": Place(at=_OWN, text="after apply", task=0),
    # Between a call and its report.
    "before the step counts": Place(at=f"{_CALLBACKS}:_Progress.on_train_batch_end", task=0),
    "before the call counts": Place(at=f"{_LOOP}:Loop.completed"),
    "after the call counts": Place(at=f"{_LOOP}:Loop.completed", when="after", task=0),
    "in the report": Place(at="raydist.training.reporting.reporter:Reporter.advance", task=0),
    "in ctx.report": Place(at="raydist.training.reporting.reporter:Reporter.hand_in"),
    "in a callback": Place(at=_OWN, text="batch end"),
    "in a callback, the chief": Place(at=_OWN, text="batch end", task=0),
    "in a status": Place(at="raydist.runtime.task.child:_Task._send", text="TaskStatus"),
    # The copy in memory.
    "as the copy is taken": Place(
        at="raydist.training.checkpointing.variables:Snapshots.take", inside="keep"
    ),
    "before the copy": Place(at="raydist.storage.kept_state:StateWriter.write", task=0),
    "in the copy": Place(at="raydist.storage.kept_state:os.pwrite", task=0, nth=3),
    "after the copy": Place(at="raydist.storage.kept_state:StateWriter.write", when="after", task=0),
    "as metrics join the copy": Place(at="raydist.metrics.parquet:MetricsWriter.waiting", task=0),
    # A checkpoint.
    "before the save": Place(at=f"{_CHECKPOINTS}.save"),
    "as a save compares": Place(at=f"{_CHECKPOINTS}.check_equal", text="at the checkpoint"),
    "after the save": Place(at=f"{_CHECKPOINTS}.save", when="after"),
    "in a file": Place(at="raydist.storage.local_files:os.fsync", inside="commit", task=0),
    "before a file is whole": Place(at="raydist.storage.local_files:os.replace", inside="commit", task=0),
    "before the marker": Place(at=f"{_STORAGE}.write_bytes", text="_COMMITTED", task=0),
    "after the marker": Place(at=f"{_STORAGE}.write_bytes", text="_COMMITTED", when="after", task=0),
    "before the deletion": Place(at=f"{_STORAGE}.delete", inside="prune", task=0),
    "in the deletion": Place(at=f"{_STORAGE}.delete", inside="prune", task=0, nth=2),
    "after the deletion": Place(at="raydist.storage.checkpoints:CheckpointStore.prune", when="after", task=0),
    # The end of an epoch.
    "in validation": Place(at=_OWN, text="test batch end"),
    "in validation, the chief": Place(at=f"{_CALLBACKS}:_Progress.on_test_batch_end", task=0),
    "before an epoch ends": Place(at=f"{_CALLBACKS}:_Progress.on_epoch_end"),
    "in a callback, as an epoch ends": Place(at=_OWN, text="epoch end", task=0),
    "after an epoch ends": Place(at=f"{_CALLBACKS}:_Checkpoint.on_epoch_end", when="after"),
    "before a backup": Place(at=f"{_BACKUP}._save_model"),
    "in a backup": Place(at="keras.src.utils.file_utils:File", text="training_metadata", task=0),
    "between the files of a backup": Place(
        at="raydist.training.stepping.backups:os.replace", inside="_commit", task=0, nth=2
    ),
    "after a backup": Place(at=f"{_BACKUP}._save_model", when="after", task=0),
    # The last step, and what follows.
    "in the last step": Place(at=_OWN, text="in a step", step=NUM_STEPS - 1),
    "after the last step": Place(at=_OWN, text="batch end", task=0, **_LAST),
    "before the last call counts": Place(at=f"{_LOOP}:Loop.completed", step=NUM_STEPS - 4),
    "before a loop ends": Place(at=f"{_LOOP}:Loop.end", task=0, **_LAST),
    "before a fit ends": Place(at=f"{_CALLBACKS}:_Checkpoint.on_train_end", task=0, **_LAST),
    "after a fit has ended": Place(at=f"{_CALLBACKS}:_Checkpoint.on_train_end", when="after", **_LAST),
    "as the fit returns": Place(at="raydist.training.trainers.fit_position:fit_ended", task=0, **_START),
    "before the end": Place(at=_OWN, text="the end", **_START),
    "before the end, both": Place(at=_OWN, text="the end", victim="both", **_START),
    "in the metrics' writer": Place(at="raydist.metrics.parquet:file_of", task=0, **_LAST),
    "before the result": Place(
        at="raydist.training.reporting.progress:TaskProgress.set_state", text="FINISHED", task=0, **_START
    ),
    "before the result is sent": Place(at="raydist.runtime.task.child:_Task._send", text="Ended(", **_START),
    # A step of a worker of parameter servers that dies may be applied twice (guide/parameter-servers.md).
    "between closures, the server": Place(at=_OWN, text="batch end", task=0, victim="ps/0"),
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of training.

    Attributes:
      job: A function of kill_ways.py; empty for a script.
      places: Where its tasks die, in turn.
    """

    job: str
    options: tuple[str, ...] = ()
    places: tuple[str, ...]


_TWO = ("--workers", "2")
WAYS = {
    "fit": Way(
        job="fit",
        options=(*_TWO, "--keras", "3", "--stall-timeout", "20"),
        places=(
            *("as a fit begins", "before the call", "after the restore", "in the data", "in a step"),
            *("before the restore", "in the restore", "in a step, the chief", "in a step, by its exit"),
            *(
                "in the collective",
                "in the collective, the chief",
                "in a step, both",
                "before the step counts",
            ),
            *("in the report", "in a callback", "in a callback, the chief", "as the copy is taken"),
            *("before the copy", "in the copy", "after the copy", "as metrics join the copy"),
            *("in a step, the chief's agent", "as the newest state is read", "before the save"),
            *("as a save compares", "after the save", "in a file", "before a file is whole"),
            *("before the marker", "after the marker", "before the deletion", "in the deletion"),
            *("after the deletion", "in validation", "in validation, the chief", "before an epoch ends"),
            *("in a callback, as an epoch ends", "after an epoch ends", "as callbacks are restored"),
            *("in a step, the agent", "in a step, the fork server", "in a step, stopped", "in a status"),
            *(
                "in the last step",
                "in the metrics' writer",
                "after the last step",
                "before a fit ends",
                "after a fit has ended",
            ),
            *("as the fit returns", "before the end", "before the end, both"),
            *("before the result", "before the result is sent"),
        ),
    ),
    "fit of tf_keras": Way(
        job="fit",
        options=(*_TWO, "--keras", "legacy"),
        places=(
            *("before the call", "in a step", "in the restore", "in the collective, the chief"),
            *("before the step counts", "in a callback, the chief", "in the copy", "before the marker"),
            *("in validation", "in a callback, as an epoch ends", "after an epoch ends", "in the last step"),
            *("before a fit ends", "before the end"),
        ),
    ),
    "fit, mirrored": Way(
        job="fit",
        options=("--strategy", "mirrored", "--devices", "2", "--keras", "legacy"),
        places=("in a step, the chief", "in the restore", "in the copy", "before the marker"),
    ),
    "fit, detached, steps in packs": Way(
        job="fit",
        options=(*_TWO, "--keras", "3", "--detach", "-p", "packs=true"),
        places=(
            *("in a step", "after the restore", "in a step, the chief", "before the step counts"),
            *("in a step, the controller", "before the restore", "as the copy is taken", "in the copy"),
            *("before the marker", "after an epoch ends", "before a fit ends"),
        ),
    ),
    "train_steps": Way(
        job="loop",
        options=(*_TWO, "--keras", "3"),
        places=(
            *("as a loop begins", "in the data", "in a step", "before the restore", "in the restore"),
            *("in the collective", "after apply", "after apply, the chief", "before the call counts"),
            *(
                "after the call counts",
                "as the copy is taken",
                "in the copy",
                "after the copy",
                "before the save",
            ),
            *("before the marker", "in the deletion", "before a loop ends", "before the end"),
        ),
    ),
    "train_steps, steps in packs": Way(
        job="loop",
        options=(*_TWO, "--keras", "legacy", "-p", "steps_per_call=4"),
        places=(
            *("in a step", "after the restore", "in a step, both", "after apply", "before the call counts"),
            *("in the copy", "after the copy", "in a step, the chief's agent", "as a save compares"),
            *("after the marker", "before the last call counts", "before the end, both"),
        ),
    ),
    "a loop of the user's": Way(
        job="own_loop",
        options=(*_TWO, "--keras", "3"),
        places=(
            *("in a step", "in the collective", "after apply, the chief", "before the restore"),
            *("in ctx.report", "before the save", "as a save compares", "after the save", "in a file"),
            *("after the marker", "in the deletion", "before the end", "before the result"),
        ),
    ),
    "a script": Way(
        job="",
        options=(*_TWO, "--keras", "3"),
        places=(
            *("before the strategy", "before the strategy, the chief", "before the call", "in a step"),
            *("in the collective, the chief", "in a callback", "before a backup", "in a backup"),
            *("between the files of a backup", "after a backup"),
            *("in a callback, as an epoch ends", "in the last step", "before the end"),
        ),
    ),
    "parameter_server": Way(
        job="parameter_server",
        options=("--strategy", "parameter_server", "--workers", "1", "--ps", "1", "--keras", "3"),
        places=(
            *("before the call, the chief", "in a callback, the chief", "between closures, the server"),
            *("in the restore", "in a file", "in the deletion", "after the marker"),
            *("in a callback, as an epoch ends", "between closures, the server", "after the last step"),
        ),
    ),
}


@pytest.mark.exhaustive(
    *("fit of tf_keras", "fit, mirrored", "fit, detached, steps in packs"),
    *("train_steps", "a loop of the user's"),
    covered_by="the places of `fit`, of a script and of packed steps",
)
@pytest.mark.parametrize("name", WAYS)
def test_run_whose_tasks_die_at_each_place_has_the_bits_of_the_undisturbed_one(
    name: str, raydist: Raydist, tmp_path: Path
) -> None:
    way = WAYS[name]
    (tmp_path / "code").mkdir()
    for path in _CODE:
        shutil.copy(path, tmp_path / "code")
    (tmp_path / "code" / "script.py").write_text("import kill_ways\n\nkill_ways.script()\n")
    calm = Run(way, "calm", (), raydist, tmp_path)
    killed = Run(way, "killed", way.places, raydist, tmp_path)
    deaths = lines_of(killed.folder / "killed")
    assert [place for place, *_ in deaths] == [*way.places], killed.result["notes"]
    assert killed.result["attempts"] == 1 + len(deaths), killed.result["notes"]
    if way.job.startswith(("fit", "loop")):
        assert any("had in memory" in note for note in killed.result["notes"])
    tasks = [path.name.removeprefix("shown-") for path in calm.folder.glob("shown-*")]
    assert tasks
    for task in tasks:
        expected = {step: told for _, step, told in calm.shown(task)}
        for attempt, step, told in killed.shown(task):
            before = [place for place, in_attempt, _ in deaths if in_attempt < attempt]
            assert told == expected.get(step, told), f"{task} at step {step} after {before[-2:]}"
        steps = {step for _, step, _ in killed.shown(task)}
        # How many steps a call takes depends on their time.
        assert steps == expected.keys() or "packs=true" in way.options
        assert NUM_STEPS in steps & expected.keys()
        check_bits(killed.variables(task), calm.variables(task))
    check_bits(killed.checkpoint(), calm.checkpoint())
    assert killed.result["metrics"] == calm.result["metrics"]
    curve, expected_curve = killed.curve(), calm.curve()
    steps = curve.keys() & expected_curve.keys()  # a loop reports by the clock
    assert {step: curve[step] for step in steps} == {step: expected_curve[step] for step in steps}


class Run:
    """A run that has ended, and what it has left."""

    def __init__(self, way: Way, name: str, places: tuple[str, ...], raydist: Raydist, folder: Path) -> None:
        self._raydist, self._name, self.folder = raydist, name, folder / name
        self.folder.mkdir()
        plan = []
        for number, place in enumerate(places):
            found = PLACES[place]
            step = 2 + number * (NUM_STEPS - 20) // len(places) if found.step == 0 else found.step
            plan.append((place, dataclasses.asdict(dataclasses.replace(found, step=step))))
        (self.folder / "plan.json").write_text(json.dumps(plan))
        job = f"code/kill_ways.py:{way.job}" if way.job else "code/script.py"
        ended = raydist(
            *("submit", job, "--name", name, "--json", *way.options, "--no-export"),
            *("--checkpoint-every", str(SAVED_EVERY), "--max-failures", "500"),
            *("--env", f"{FOLDER}={self.folder}"),
            timeout_s=1700,
        )
        if "--detach" in way.options and ended.code == 0:
            raydist("wait", name, timeout_s=1700)
            ended = raydist("status", name, "--json")
        assert ended.code == 0, f"after {lines_of(self.folder / 'killed')[-2:]}: {ended.err}"
        self.result: dict[str, Any] = ended.json
        assert (self.result["state"], self.result["steps"]) == ("SUCCEEDED", NUM_STEPS)

    def shown(self, task: str) -> list[Any]:
        return lines_of(self.folder / f"shown-{task}")

    def variables(self, task: str) -> dict[str, np.ndarray]:
        return dict(np.load(self.folder / f"end-{task}.npz"))

    def checkpoint(self) -> dict[str, np.ndarray]:
        """Returns what the last one holds, with slots and random states; a script has none."""
        if self.result["checkpoint"] is None:
            return {}
        content = Path(self.result["checkpoint"], "variables.npz").read_bytes()
        with np.load(io.BytesIO(content)) as arrays:
            return dict(arrays)

    def curve(self) -> dict[str, str]:
        rows = self._raydist("metrics", self._name, "--format", "csv").out.splitlines()
        assert len({row.partition(",")[0] for row in rows}) == len(rows), rows
        return dict(row.split(",", 1) for row in rows)  # type: ignore[misc]


def check_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name
