"""StateKeeper: keeps the chief's state in memory of its host, so that a new attempt repeats few steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from raydist.spec.quantities import write_bytes
from raydist.storage.kept_state import StateWriter
from raydist.training.checkpointing.uploads import Uploads
from raydist.training.checkpointing.variables import Copies, Snapshots

logger = logging.getLogger(__name__)

# The memory that holds the snapshot, and the two states that take turns.
_COPIES = 3
MOST_BYTES = 1 << 30  # of the host's memory, which the job's own data need too


class StateKeeper:
    """Every worker calls `keep` after the same call; the chief alone writes, aside."""

    def __init__(
        self,
        memory: Sequence[str] | None,
        *,
        waiting: Callable[[], Mapping[str, bytes]] = dict,
        note: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Takes where the chief writes, see `StateMemory.paths`; None for the others.

        Args:
          waiting: Returns what was reported and waits to be stored.
        """
        self._writer: StateWriter | None = None
        self._waiting = waiting
        self._note = note
        self._snapshots = Snapshots()
        self._writes = Uploads()
        self.is_given_up = False
        self._most_variables = 0  # of the states that fit
        if memory is not None:
            try:
                self._writer = StateWriter(memory)
            except OSError as error:  # such as a container that hides the agent's files
                self._give_up(str(error))

    def keep(
        self,
        groups: Mapping[str, Sequence[Any]],
        files: Callable[[], Mapping[str, bytes]],
        *,
        step: int,
        copies: Copies | None,
        averaged: Collection[Any] = (),
    ) -> None:
        """Copies the state, and begins to write it.

        Args:
          groups: Variables by the name of what they are of.
          files: Returns what a checkpoint has besides its variables.
          averaged: See `Snapshots.take`.
        """
        self._await_write()
        writer = self._writer if self._fits(groups) else None
        snapshot = self._snapshots.take(groups, is_chief=writer is not None, copies=copies, averaged=averaged)
        if snapshot is not None and writer is not None:
            beside = files()

            def write() -> None:
                writer.write(step, {**snapshot.files(), **beside}, self._waiting())

            self._writes.start(write)

    def _await_write(self) -> None:
        try:
            self._writes.wait()
        except Exception as error:  # such as no memory; training does not depend on it
            logger.warning("no state is kept in memory any more", exc_info=True)
            self._give_up(f"{type(error).__name__}: {error}")

    def _fits(self, groups: Mapping[str, Sequence[Any]]) -> bool:
        num_variables = sum(map(len, groups.values()))
        if self._writer is not None and num_variables > self._most_variables:
            self._most_variables = num_variables
            sizes = (math.prod(one.shape) * one.dtype.size for group in groups.values() for one in group)
            needed = _COPIES * sum(sizes)
            if needed > MOST_BYTES:
                self._give_up(f"that needs {write_bytes(needed)}, and {write_bytes(MOST_BYTES)} is the most")
        return self._writer is not None

    def _give_up(self, why: str) -> None:
        self._writer, self.is_given_up = None, True
        self._note(
            f"the state is not kept in memory between checkpoints ({why}), so a new attempt repeats the "
            "steps since the last one"
        )
