"""StateKeeper: keeps the chief's state in memory of its host, so that a new attempt repeats few steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raydist.spec.byte_size import write_bytes
from raydist.storage.kept_state import StateWriter
from raydist.training.checkpointing.uploads import Uploads
from raydist.training.checkpointing.variables import Snapshots

# What keeping may take of the time; with more of it, more calls go by in between.
MOST_SHARE = 0.03
# The memory that holds the snapshot, and the two states that take turns.
_COPIES = 3


class KeepSchedule:
    """Decides after which calls of steps the state is kept, alike in all workers."""

    def __init__(self) -> None:
        self._every = 1
        self._num_calls = 0
        self._kept_at = 0
        self._cost_s = 0.0

    def called(self) -> None:
        """Counts a call."""
        self._num_calls += 1

    @property
    def is_due(self) -> bool:
        return self._num_calls - self._kept_at >= self._every

    def kept(self, cost_s: float) -> None:
        """Takes what it has cost this worker's training to keep a state after the last call."""
        self._kept_at, self._cost_s = self._num_calls, cost_s

    @property
    def cost_s(self) -> float:
        """What it has cost this worker's training the last time."""
        return self._cost_s

    def agreed(self, cost_s: float, *, call_s: float) -> None:
        """Takes what all workers have agreed on: what keeping a state costs, and how long a call takes."""
        self._every = max(1, round(cost_s / (MOST_SHARE * call_s))) if call_s > 0 else 1


class StateKeeper:
    """Every worker calls `keep` after the same call; the chief alone writes, aside."""

    def __init__(
        self,
        writer: StateWriter | None,
        *,
        unstored: Callable[[], Mapping[str, bytes] | None] = dict,
        most_bytes: int,
        note: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Takes where the chief writes; None for the others.

        Args:
          unstored: Returns what was reported and is not on storage, by its key; None if that cannot be told.
          most_bytes: Memory that it may take. A state that does not fit is not kept.
        """
        self._writer = writer
        self._unstored = unstored
        self._most_bytes = most_bytes
        self._note = note
        self._snapshots = Snapshots()
        self._writes = Uploads()
        self._needs: int | None = None

    def keep(
        self, groups: Mapping[str, Sequence[Any]], files: Callable[[], Mapping[str, bytes]], *, step: int
    ) -> float:
        """Copies the state, and begins to write it; returns the seconds that training had to wait.

        Args:
          groups: Variables by the name of what they are of.
          files: Returns what a checkpoint has beside its variables.
        """
        begun_at_s = time.perf_counter()
        writer = self._writer if self._fits(groups) else None
        self._await_write()
        snapshot = self._snapshots.take(groups, is_chief=writer is not None)
        if snapshot is not None and writer is not None:
            beside = files()

            def write() -> None:
                unstored = self._unstored()
                if unstored is not None:
                    writer.write(step, {**snapshot.files(), **beside}, unstored)

            self._writes.start(write)
        return time.perf_counter() - begun_at_s

    def _await_write(self) -> None:
        try:
            self._writes.wait()
        except OSError as error:  # no memory
            self._give_up(f"{error.strerror}")

    def _fits(self, groups: Mapping[str, Sequence[Any]]) -> bool:
        if self._writer is not None and self._needs is None:
            sizes = (math.prod(one.shape) * one.dtype.size for group in groups.values() for one in group)
            self._needs = _COPIES * sum(sizes)
            if self._needs > self._most_bytes:
                needs, most = write_bytes(self._needs), write_bytes(self._most_bytes)
                self._give_up(f"that needs {needs}, and --survivor-memory is {most}")
        return self._writer is not None

    def _give_up(self, why: str) -> None:
        self._writer = None
        self._note(
            f"the state is not kept in memory between checkpoints ({why}), so a new attempt repeats the "
            "steps since the last one"
        )
