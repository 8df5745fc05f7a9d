"""Uploads: writing alongside the training, one upload at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

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
