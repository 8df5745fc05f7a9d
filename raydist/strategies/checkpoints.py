"""A task's checkpoints: what goes in, when one is due, and taking it out again."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydist.spec.job import CheckpointEvery, CheckpointUnit
from raydist.storage.checkpoint_marker import Checkpoint
from raydist.storage.checkpoints import CheckpointStore
from raydist.strategies import variables
from raydist.strategies.progress import TaskProgress
from raydist.strategies.uploads import Uploads

logger = logging.getLogger(__name__)

STATE_NAME = "state.json"


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a checkpoint says beside its variables.

    Attributes:
      step: Steps completed by the run. `epoch`: epochs completed.
      step_in_epoch: Steps completed in the epoch after that.
      history: Logs of each epoch so far, in order.
      fit: How many calls of `ctx.fit` had ended before.
      files: The checkpoint's files.
      uri: Where it is, for messages.
    """

    step: int
    epoch: int = 0
    step_in_epoch: int = 0
    history: tuple[Mapping[str, float], ...] = ()
    fit: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    uri: str = ""


class TaskCheckpoints:
    """Saves and restores for one task. The chief writes; the others take part where TensorFlow needs them."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        attempt: int,
        is_chief: bool,
        keep: int | None,
        keep_best: str | None,
        progress: TaskProgress,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._is_chief = is_chief
        self._keep = keep
        self._keep_best = keep_best
        self._progress = progress
        self._snapshots = variables.Snapshots()
        self._uploads = Uploads()
        self._newest: SavedState | None = None
        self._is_read = False
        self._unreadable_step = 0
        self.last_saved_step: int | None = None
        self._saved_at_s = time.monotonic()

    @property
    def seconds_since_save(self) -> float:
        """Seconds since the last save of this attempt began, or since the attempt did."""
        return time.monotonic() - self._saved_at_s

    def newest(self) -> SavedState | None:
        """Returns the newest whole checkpoint of the run's earlier attempts; None without one."""
        if not self._is_read:
            self._newest = self._read_newest()
            self._is_read = True
        return self._newest

    def newest_step(self) -> int:
        """Returns the step of the newest committed checkpoint, of this attempt too; 0 without one."""
        committed = self._store.committed()
        return committed[0].step if committed else 0

    def newest_after(self, step: int) -> SavedState | None:
        """Returns the newest whole checkpoint if it is of a later step than `step`, read anew each time."""
        newest = self.newest_step()
        if newest <= max(step, self._unreadable_step):
            return None
        state = self._read_newest()
        if state is None or state.step < newest:
            self._unreadable_step = newest  # looked at once, not at each call
        return state if state is not None and state.step > step else None

    def _read_newest(self) -> SavedState | None:
        self.finish()  # where this task saved before it restores
        with tempfile.TemporaryDirectory(prefix="raydist-restore-") as folder:
            found = self._store.latest_whole(fetch_to=Path(folder))
            files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        for damaged in found.damaged:
            self._progress.note(f"skipped: {damaged.reason}")
        if found.checkpoint is None:
            return None
        state = json.loads(files[STATE_NAME])
        self.last_saved_step = state["step"]
        return SavedState(
            step=state["step"],
            epoch=state["epoch"],
            step_in_epoch=state["step_in_epoch"],
            history=tuple(state["history"]),
            fit=state["fit"],
            files=files,
            uri=found.checkpoint.uri,
        )

    def restore(self, state: SavedState, trackables: Mapping[str, Any]) -> None:
        """Assigns the variables of `trackables` from `state`, in every task."""
        variables.write(_groups(trackables), state.files, checkpoint=state.uri)
        self._progress.restored(state.step)
        logger.info("restored step %d from %s", state.step, state.uri)

    def save(
        self,
        trackables: Mapping[str, Any],
        *,
        step: int,
        epoch: int = 0,
        step_in_epoch: int = 0,
        history: tuple[Mapping[str, float], ...] = (),
        fit: int = 0,
    ) -> None:
        """Copies what is to be saved and begins to commit it. Every task calls it at the same step.

        The chief stores it while training goes on. Where it still stores the one before, it waits for
        that: a checkpoint was asked for at this very step, and two under way would hold the whole state
        twice, on a storage that is too slow for one.

        Raises:
          StorageError: The one before could not be stored.
        """
        self._uploads.wait()
        self._saved_at_s = time.monotonic()
        snapshot = self._snapshots.take(_groups(trackables), is_chief=self._is_chief)
        self.last_saved_step = step
        if snapshot is None:
            return
        metrics = dict(history[-1]) if history and not step_in_epoch else {}
        position = {"step": step, "epoch": epoch, "step_in_epoch": step_in_epoch, "fit": fit}
        state = json.dumps({**position, "history": list(history)}).encode()
        info = {"epoch": epoch, "metrics": metrics}

        def upload() -> None:
            self._commit({**snapshot.files(), STATE_NAME: state}, step=step, info=info)

        self._uploads.start(upload)

    def check(self) -> None:
        """Raises what kept a checkpoint from being stored, at the first step after."""
        self._uploads.check()

    def finish(self, *, timeout_s: float | None = None) -> None:
        """Waits until the last checkpoint is committed; raises what kept it from being."""
        self._uploads.wait(timeout_s=timeout_s)

    def _commit(self, files: Mapping[str, bytes], *, step: int, info: Mapping[str, Any]) -> None:
        checkpoint = self._store.commit(step=step, attempt=self._attempt, files=files, info=info)
        best = best_step(self._store.committed(), self._keep_best)
        self._store.prune(keep=self._keep, keep_steps=() if best is None else (best,))
        self._progress.committed(checkpoint.uri)
        logger.info("committed %s", checkpoint.uri)


def best_step(committed: Sequence[Checkpoint], metric: str | None) -> int | None:
    """Returns the step with the best value of `metric`; None where no checkpoint has it.

    The least is best for names with `loss` or `error` in them, the most for all others. Among equals
    the earliest is.
    """
    values = [
        (checkpoint.info["metrics"][metric], checkpoint.step)
        for checkpoint in committed
        if metric is not None and metric in checkpoint.info.get("metrics", {})
    ]
    if not values or metric is None:
        return None
    sign = 1.0 if "loss" in metric or "error" in metric else -1.0
    return min(values, key=lambda pair: (sign * pair[0], pair[1]))[1]


class Cadence:
    """When the next checkpoint is due. By steps and epochs all tasks decide alike, by seconds the chief."""

    def __init__(self, every: CheckpointEvery) -> None:
        self._every = every

    def is_due(self, *, step_before: int, step: int) -> bool:
        """Whether a checkpoint is due within an epoch, after a call that took the run to `step`."""
        count = self._every.count
        return self._every.unit is CheckpointUnit.STEPS and step_before // count < step // count

    def is_due_after(self, seconds: float) -> bool:
        """Whether one is due when the last one was that long ago."""
        return self._every.unit is CheckpointUnit.SECONDS and seconds >= self._every.count

    def steps_left(self, step: int) -> int:
        """Returns how many steps may run from `step` on before one is due, at least 1."""
        count = self._every.count
        return count - step % count if self._every.unit is CheckpointUnit.STEPS else 1 << 30

    def is_due_at_epoch_end(self, epoch: int) -> bool:
        """Whether one is due when `epoch` epochs are completed."""
        return self._every.unit is CheckpointUnit.EPOCHS and epoch % self._every.count == 0


def _groups(trackables: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: variables.variables_of(name, trackable) for name, trackable in trackables.items()}
