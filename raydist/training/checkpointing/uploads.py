"""Writing beside the training: one upload at a time, and the chief's newest state in memory of its host."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from raydist.spec.quantities import write_bytes
from raydist.storage.kept_state import StateWriter
from raydist.training.checkpointing.variables import Snapshots, Sums

logger = logging.getLogger(__name__)

_NICER_BY = 5
_NICEST = 19


class Uploads:
    """Runs uploads in a thread of their own, one after the other. Used by one thread, the training one.

    What an upload raises is raised here, once, by the call that comes next: the training has to end
    when its checkpoints cannot be stored.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, upload: Callable[[], None]) -> None:
        """Starts an upload, once the one before is done; raises what that one raised."""
        self.wait()
        # A daemon: a process that has to end does not wait for a storage that does not answer. Nothing
        # half-written is ever read, so it may end at any moment.
        self._thread = threading.Thread(
            target=self._run, args=(upload,), name="raydist-checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raises what an upload raised, if it is done; costs nothing."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self, *, timeout_s: float | None = None) -> None:
        """Waits until nothing is under way; raises what the upload raised."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, upload: Callable[[], None]) -> None:
        try:
            _step_back()
            upload()
        except BaseException as error:  # a thread's border: the training thread raises it
            self._error = error


def _step_back() -> None:
    """Lets the training go first where the cores are busy. Of this thread alone (Linux)."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox that allows no such call; the upload matters more
        # From where Ray has put its workers: only root may go back below that.
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICER_BY
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _NICEST))


# The memory that holds the snapshot, and the two states that take turns.
_COPIES = 3


class StateKeeper:
    """Every worker calls `keep` after the same call; the chief alone writes, aside."""

    def __init__(
        self,
        memory: Sequence[str] | None,
        *,
        waiting: Callable[[], Mapping[str, bytes]] = dict,
        most_bytes: int,
        note: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Takes where the chief writes, see `StateMemory.paths`; None for the others.

        Args:
          waiting: Returns what was reported and waits to be stored.
          most_bytes: Memory that it may take. A state that does not fit is not kept.
        """
        self._writer: StateWriter | None = None
        self._waiting = waiting
        self._most_bytes = most_bytes
        self._note = note
        self._snapshots = Snapshots()
        self._writes = Uploads()
        self._is_given_up = False
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
        sums: Sums | None,
        averaged: Collection[Any] = (),
        copies: Sums | None = None,
    ) -> None:
        """Copies the state, and begins to write it.

        Args:
          groups: Variables by the name of what they are of.
          files: Returns what a checkpoint has beside its variables.
          sums, averaged, copies: How replicas' variables are put together, see `Snapshots.take`.
        """
        self._await_write()
        writer = self._writer if self._fits(groups) else None
        snapshot = self._snapshots.take(
            groups, is_chief=writer is not None, sums=sums, averaged=averaged, copies=copies
        )
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

    @property
    def is_given_up(self) -> bool:
        """Whether the chief keeps none any more."""
        return self._is_given_up

    def _fits(self, groups: Mapping[str, Sequence[Any]]) -> bool:
        num_variables = sum(map(len, groups.values()))
        if self._writer is not None and num_variables > self._most_variables:
            self._most_variables = num_variables
            sizes = (math.prod(one.shape) * one.dtype.size for group in groups.values() for one in group)
            needed = _COPIES * sum(sizes)
            if needed > self._most_bytes:
                needs, most = write_bytes(needed), write_bytes(self._most_bytes)
                self._give_up(f"that needs {needs}, and --survivor-memory is {most}")
        return self._writer is not None

    def _give_up(self, why: str) -> None:
        self._writer, self._is_given_up = None, True
        self._note(
            f"the state is not kept in memory between checkpoints ({why}), so a new attempt repeats the "
            "steps since the last one"
        )
