"""A task's checkpoints: what goes in, and taking it out again.

A checkpoint holds groups of variables: `model` and `optimizer`; `metrics`, only of a checkpoint inside of an
epoch; `random-*`, the generators' states; and `state`, all that training may change and no other group holds;
for a script, what it gives to `ctx.save`. trainers/fit_position.py chooses them.
"""

from __future__ import annotations

import logging
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raydist.errors import CheckpointError, StorageError
from raydist.outcome.status import NOT_FINITE
from raydist.spec.text import listed
from raydist.storage.checkpoint_marker import STATE_FILE, Checkpoint, decode_state, encode_state
from raydist.storage.checkpoints import CheckpointStore, Evaluations, EvaluationStore
from raydist.training.checkpointing import saved_state, schedule, variables
from raydist.training.checkpointing.kept_states import StateKeeper
from raydist.training.checkpointing.saved_state import ARRAYS_FILE, SavedState, encode_arrays, packed_history
from raydist.training.checkpointing.uploads import Uploads
from raydist.training.cluster import collectives, equal_workers
from raydist.training.cluster.equal_workers import Gather, statistics_of
from raydist.training.reporting.logs import by_element
from raydist.training.reporting.progress import TaskProgress

# How often workers that found different checkpoints look again.
_READS = 3
_REREAD_AFTER_S = 1.0
# How often a task that waits for a slow storage shows that it is alive.
_BEAT_S = 5.0
# How long the chief waits at the end of a fit for the next value of an evaluator that decides which is best.
_EVALUATION_TIMEOUT_S = 600.0
_EVALUATION_POLL_S = 1.0

logger = logging.getLogger(__name__)


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
        before_commit: Callable[[], None] = lambda: None,
        evaluations: EvaluationStore | None = None,
        has_evaluator: bool = False,
        keeper: StateKeeper | None = None,
        kept: SavedState | None = None,
        on_kept: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes what the chief keeps.

        Args:
          keeper: Keeps states in memory between two checkpoints; None keeps none.
          kept: What the chief of the attempt before has kept so, for all workers.
          on_kept: Called once that is what the run continues from.
          evaluations: The evaluator's values, where they may decide which checkpoint is best; else None.
          has_evaluator: Whether there is an evaluator now, whose values of each checkpoint are awaited.
          before_commit: Stores what a run that continues from the checkpoint will not report again.
        """
        self._gather: Gather | None = None
        self._copies: variables.Copies | None = None
        self._before_commit = before_commit
        self._store = store
        self._evaluations = evaluations
        self._has_evaluator = has_evaluator
        self._attempt = attempt
        self._is_chief = is_chief
        self._keep = keep
        self._keep_best = keep_best
        self._progress = progress
        self._keeper = keeper
        self._kept = kept
        self._on_kept = on_kept
        self._snapshots = variables.Snapshots()
        self._uploads = Uploads()
        self._newest: SavedState | None = None
        self._is_read = False
        self._unreadable_step = 0
        self._last: Checkpoint | None = None  # that this task has committed
        self.last_saved_step: int | None = None
        self._last_saved_by: tuple[int, int] | None = None  # attempt and fit
        self._ended_fits: dict[int, tuple[int, int]] = {}
        self._saved_at_s = time.monotonic()

    def exchange_by(self, gather: Gather | None, copies: variables.Copies | None) -> None:
        """Takes the collectives of a strategy, once that is built.

        Args:
          gather: Returns the numbers of every worker that restores, in their order. None where there is but
            one.
          copies: See `Snapshots.take`.
        """
        self._gather, self._copies = gather, copies

    @property
    def seconds_since_save(self) -> float:
        """Seconds since the last save of this attempt began, or since the attempt did."""
        return time.monotonic() - self._saved_at_s

    def newest(self) -> SavedState | None:
        """Returns the newest whole checkpoint of the run's earlier attempts; None without one.

        Every worker asks at the same point.

        Raises:
          CheckpointError: They found different ones.
        """
        if not self._is_read:
            self._newest = self._read_consistent()
            self._is_read = True
            if self._newest is not None:
                ended = self._newest.ended_fits or ()
                self._ended_fits = {number: (step, attempt) for number, step, attempt in ended}
            if self._newest is not None and self._newest is self._kept:
                self._note_kept(self._newest)
        return self._newest

    def _read_consistent(self) -> SavedState | None:
        # Otherwise those that found one would wait in its restore for those that train already.
        for _ in range(_READS):
            state = self._read_newest()
            if self._kept is not None and (state is None or state.step < self._kept.step):
                state = self._kept
            if self._gather is None:
                return state
            name = state.uri.rpartition("/")[2] if state else ""
            rows = self._gather([state.step if state else -1, zlib.crc32(name.encode())])
            if not (named := collectives.inconsistent_names(rows)):
                return state
            # A chief that was cut away and comes back may have committed another one since.
            time.sleep(_REREAD_AFTER_S)
        found = collectives.by_worker(f"that of step {step}" if step >= 0 else "none" for step, _ in rows)
        raise CheckpointError(
            f"the workers found different checkpoints ({found}): {named} does not see the same "
            "storage; give a --storage that every host shares"
        )

    def fit_ended(self, number: int) -> None:
        """Takes the last checkpoint for the one with the end of a `fit`, which is kept from then on.

        A `fit` without a step has none.
        """
        if self.last_saved_step is not None and self._last_saved_by is not None:
            attempt, fit = self._last_saved_by
            if fit == number:
                self._ended_fits[number] = self.last_saved_step, attempt

    def of_ended_fit(self, number: int) -> SavedState | None:
        """Returns the checkpoint with the end of a `fit`; None if it has none.

        Raises:
          CheckpointError: It is damaged.
        """
        if number not in self._ended_fits:
            return None
        step, attempt = self._ended_fits[number]
        found = self._store.find(step=step, attempt=attempt)
        return SavedState.read(self._store.read(found), uri=found.uri)

    def _note_kept(self, state: SavedState) -> None:
        self._on_kept()
        if self._is_chief:
            saved = self.last_saved_step
            instead = "from the beginning" if saved is None else f"from the checkpoint of step {saved}"
            self._progress.note(
                f"attempt {self._attempt} continued from step {state.step}, which the chief's host had in "
                f"memory, and not {instead}"
            )

    def newest_step(self) -> int:
        """Returns the step of the newest committed checkpoint, of this attempt too; 0 without one."""
        committed = self._store.committed()
        return committed[0].step if committed else 0

    def newest_after(self, step: int) -> SavedState | None:
        """Returns the newest whole checkpoint if it is of a later step than `step`, read again each time."""
        newest = self.newest_step()
        if newest <= max(step, self._unreadable_step):
            return None
        state = self._read_newest()
        if state is None or state.step < newest:
            self._unreadable_step = newest  # looked at once, not at each call
        return state if state is not None and state.step > step else None

    def next_to_evaluate(self, seen: SavedState | None) -> SavedState | None:
        """Returns the checkpoint that an evaluator evaluates after `seen`; None while there is none.

        It is the newest one. Where the evaluator decides which is best, it is the oldest without values, and
        the chief keeps it in that time.
        """
        if self._evaluations is None:
            return self.newest_after(0 if seen is None else seen.step)
        known, committed = self._evaluations.read(), sorted(self._store.committed(), key=schedule.age)
        names = [one.name for one in committed]
        first = names.index(seen.name) + 1 if seen is not None and seen.name in names else 0
        for checkpoint in committed[first:]:
            if checkpoint.name in known:
                continue
            try:
                return SavedState.read(self._store.read(checkpoint), uri=checkpoint.uri)
            except CheckpointError as error:
                logger.warning("skipped a damaged checkpoint: %s", error)
                self._evaluations.add(checkpoint.name, {}, present=names)  # or the chief would wait for it
        return None

    def evaluated(self, state: SavedState, values: Mapping[str, float]) -> None:
        """Stores an evaluator's values, where they decide which checkpoint is best."""
        if self._evaluations is not None:
            self._evaluations.add(state.name, values, present=[one.name for one in self._store.committed()])

    def _read_newest(self) -> SavedState | None:
        self.finish()  # where this task saved before it restores
        with tempfile.TemporaryDirectory(prefix="raydist-restore-") as folder:
            found = self._store.latest_whole(fetch_to=Path(folder))
            files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        for damaged in found.damaged:
            self._progress.note(f"skipped: {damaged.reason}")
        if found.checkpoint is None:
            return None
        state = SavedState.read(files, uri=found.checkpoint.uri)
        self.last_saved_step, self._last_saved_by = state.step, (found.checkpoint.attempt, state.fit)
        return state

    def build_optimizers(self, state: SavedState, trackables: Mapping[str, Any]) -> None:
        """Builds those without variables yet of which `state` holds some. In a scope."""
        variables.build_optimizers(trackables, state.files)

    def restore(self, state: SavedState, trackables: Mapping[str, Any]) -> None:
        """Assigns the variables of `trackables` from `state`, in every task.

        Raises:
          CheckpointError: It does not fit.
          UnsupportedError: The workers do not hold the same after it.
        """
        groups = _groups(trackables)
        # A trial that continues from another one's checkpoint has params of its own.
        with saved_state.kept_rates(trackables.values(), is_kept=state.is_inherited):
            variables.write(groups, state.files, checkpoint=state.uri)
        if (sentence := variables.other_replicas(groups, state.files)) is not None:
            self._progress.note(sentence)
        self.check_equal(trackables, when=f"after the restore of {state.uri}")
        # What has the end of an earlier `fit` is not what the run continues from.
        self._progress.restored(max(state.step, self._newest.step if self._newest is not None else 0))
        logger.info("restored step %d from %s", state.step, state.uri)

    def save(
        self,
        trackables: Mapping[str, Any],
        *,
        step: int,
        epoch: int = 0,
        step_in_epoch: int = 0,
        history: tuple[Mapping[str, Any], ...] = (),
        fit: int = 0,
        arrays: Mapping[str, np.ndarray] | None = None,
        **state: Any,
    ) -> None:
        """Copies what is to be saved and begins to commit it. Every task calls it at the same step.

        The chief stores it while training continues. Where it still stores the one before, it waits for
        that: a checkpoint was asked for at this very step, and two under way would hold the whole state
        twice, on a storage that is too slow for one.

        Args:
          state: The other fields of SavedState, as JSON. `arrays`: those that it names.

        Raises:
          StorageError: The one before could not be stored.
          UnsupportedError: The workers do not hold the same.
        """
        self.check_equal(trackables, when=f"at the checkpoint of step {step}")
        self._await_upload()
        self._saved_at_s = time.monotonic()
        snapshot = self._snapshots.take(
            _groups(trackables),
            is_chief=self._is_chief,
            copies=self._copies,
            averaged=_statistics(trackables),
        )
        self.last_saved_step, self._last_saved_by = step, (self._attempt, fit)
        if snapshot is None:
            return
        metrics = by_element(history[-1]) if history and not step_in_epoch else {}
        position = {"step": step, "epoch": epoch, "step_in_epoch": step_in_epoch, "fit": fit}
        ended = self._described_ends()
        files = {STATE_FILE: _encoded(history, **position, ended_fits=ended, **state)}
        info = {"epoch": epoch, "fit": fit, "metrics": metrics, "ended_fits": ended}

        def upload() -> None:
            if names := snapshot.non_finite():
                info["non_finite"] = names
                self._progress.note(non_finite_note(f"the checkpoint of step {step}", names))
            info["digest"] = snapshot.digest()
            if arrays:
                files[ARRAYS_FILE] = encode_arrays(arrays)
            self._commit({**snapshot.files(), **files}, step=step, info=info)

        self._uploads.start(upload)

    @property
    def keeps(self) -> bool:
        """Whether `keep` does anything, alike in all tasks."""
        return self._keeper is not None

    @property
    def has_given_up_keeping(self) -> bool:
        """Whether the chief keeps none any more; False in other tasks."""
        return self._keeper is not None and self._keeper.is_given_up

    def keep(
        self,
        trackables: Mapping[str, Any],
        *,
        step: int,
        history: tuple[Mapping[str, Any], ...] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
        **state: Any,
    ) -> None:
        """Keeps in memory what `save` takes. Every task calls it at the same step."""
        assert self._keeper is not None
        ended = self._described_ends()

        def files() -> dict[str, bytes]:
            found = {STATE_FILE: _encoded(history, step=step, ended_fits=ended, **state)}
            return {**found, ARRAYS_FILE: encode_arrays(arrays)} if arrays else found

        self._keeper.keep(
            _groups(trackables),
            files,
            step=step,
            copies=self._copies,
            averaged=_statistics(trackables),
        )

    def check_equal(self, trackables: Mapping[str, Any], *, when: str) -> None:
        """Checks that all workers hold the same state, as `equal_workers.check` does. Every task calls it."""
        statistics = {id(one) for one in _statistics(trackables)}
        found = (one for group in _groups(trackables).values() for one in group)
        self._check_equal([one for one in found if id(one) not in statistics], when=when)

    def _check_equal(self, state: Sequence[Any], *, when: str) -> None:
        if self._gather is not None and (note := equal_workers.check(state, self._gather, when=when)):
            self._progress.note(note)

    def _described_ends(self) -> list[tuple[int, int, int]]:
        return [(number, step, attempt) for number, (step, attempt) in self._ended_fits.items()]

    def _await_upload(self) -> None:
        while self._uploads.is_busy:
            self._uploads.wait(timeout_s=_BEAT_S)
            self._progress.beat()  # storage has limits of its own; training is not what stalls
        self._uploads.wait()

    def best_files(self, *, fit: int) -> dict[str, bytes] | None:
        """Returns the files of this fit's best checkpoint by the metric to keep, None where it has none.

        A note says so where a metric was to be kept.
        """
        if self._keep_best is None:
            return None
        self.finish()
        # The markers of an older raydist do not name the fit.
        committed, _ = self._committed()
        candidates = [one for one in committed if one.info.get("fit", fit) == fit]
        while (step := schedule.best_step(candidates, self._keep_best)) is not None:
            files = self._store.read(next(one for one in candidates if one.step == step))
            if decode_state(files[STATE_FILE])["fit"] == fit:
                return files
            candidates = [one for one in candidates if one.step != step]
        self._progress.note(
            f"no checkpoint of this ctx.fit has the metric of --keep-best {self._keep_best}, so its last "
            "weights are exported"
        )
        return None

    def settle_best(self, *, fit: int, is_alone: Callable[[], bool] = lambda: False) -> None:
        """Has the evaluator's values of this fit's checkpoints count, where they decide which is best.

        Waits for those that it has yet to evaluate, for 10 minutes after each value at most. The chief calls
        it at the end of a `fit`.

        Args:
          is_alone: Whether the run has gone on without its evaluator.
        """
        if self._evaluations is None or not self._has_evaluator or not self._is_chief:
            return
        self.finish()
        committed = [one for one in self._store.committed() if one.info.get("fit") == fit]
        left, since_s = schedule.awaited(committed, self._evaluations.read()), time.monotonic()
        while left and not is_alone() and time.monotonic() - since_s < _EVALUATION_TIMEOUT_S:
            self._progress.beat()  # the evaluator is what takes its time
            time.sleep(_EVALUATION_POLL_S)
            num_before, left = len(left), schedule.awaited(committed, self._evaluations.read())
            since_s = since_s if len(left) == num_before else time.monotonic()
        if left:
            steps = ", ".join(str(one.step) for one in left)
            self._progress.note(
                f"the evaluator has not evaluated the checkpoints of step {steps}, so --keep-best "
                f"{self._keep_best} chose among the others"
            )
        self._prune()

    def check(self) -> None:
        """Raises what kept a checkpoint from being stored, at the first step after."""
        self._uploads.check()

    def finish(self, *, timeout_s: float | None = None) -> None:
        """Waits until the last checkpoint is committed; raises what kept it from being."""
        self._uploads.wait(timeout_s=timeout_s)

    def check_stored(self) -> None:
        """Raises StorageError if the checkpoint that this task has stored last is not there any more."""
        if self._last is not None and self._last.name not in {one.name for one in self._store.committed()}:
            raise StorageError(
                f"checkpoint {self._last.uri} was stored, and is not there any more: it was deleted, or the "
                "storage was replaced"
            )

    def _commit(self, files: Mapping[str, bytes], *, step: int, info: Mapping[str, Any]) -> None:
        self._before_commit()
        checkpoint = self._store.commit(step=step, attempt=self._attempt, files=files, info=info)
        self._last = checkpoint
        self._prune()
        self._progress.committed(checkpoint.uri)
        logger.info("committed %s", checkpoint.uri)

    def _committed(self) -> tuple[list[Checkpoint], Evaluations]:
        """Returns the checkpoints, with what an evaluator found for them among their metrics, and that."""
        evaluations = self._evaluations.read() if self._evaluations is not None else {}
        return schedule.with_evaluations(self._store.committed(), evaluations), evaluations

    def _prune(self) -> None:
        committed, evaluations = self._committed()
        keep_steps = schedule.best_steps(committed, self._keep_best)
        if self._evaluations is not None and self._has_evaluator:
            keep_steps |= schedule.awaited_steps(committed, evaluations)
        keep_steps |= schedule.last_steps(committed)
        self._store.prune(keep=self._keep, keep_steps=keep_steps)


def non_finite_note(what: str, names: Sequence[str]) -> str:
    """Returns what is told of a checkpoint or an export with variables that are not finite."""
    return f"{NOT_FINITE}: {what} holds NaN or infinity in {listed(names, most=3)}"


def _groups(trackables: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: variables.variables_of(name, trackable) for name, trackable in trackables.items()}


def _encoded(history: Sequence[Mapping[str, Any]], **state: Any) -> bytes:
    return encode_state({"history": packed_history(history), **state})


def _statistics(trackables: Mapping[str, Any]) -> list[Any]:
    return [one for trackable in trackables.values() for one in statistics_of(trackable)]
