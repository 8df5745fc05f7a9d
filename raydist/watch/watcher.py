"""The driver's side: how it comes to be watched over, and what it sends."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raydist.watch import messages
from raydist.watch.messages import DrivenRun

if TYPE_CHECKING:
    import subprocess

_STOP_TIMEOUT_S = 5.0
# Appended, and without the current folder (as by -P, which came with Python 3.11), so that nothing beside
# raydist hides a module of Python's.
_START = (
    "import sys; sys.path = [one for one in sys.path if one] + [sys.argv[2]]; "
    "from raydist.watch.process import main; main()"
)

# The pipe to the supervisor, in a process that has one.
_supervisor: int | None = None


class Watcher:
    """The process that watches over this one. If it has died, nothing else changes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def begin(self, run: DrivenRun) -> None:
        """Sends what this process drives from now on."""
        self._send(messages.begun(run))

    def end(self) -> None:
        """Sends that the run is over and that nothing of it is left."""
        self._send(messages.over())

    def exit(self, exit_code: int) -> None:
        """Sends what the command ends with, whatever becomes of the process from here on."""
        self._send(messages.exiting(exit_code))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, message)


@contextlib.contextmanager
def watched() -> Iterator[Watcher]:
    """Has this process watched over: by the supervisor that started it, else by a process of its own."""
    if _supervisor is not None:
        watcher = Watcher(_supervisor)
        try:
            yield watcher
        finally:
            watcher.end()
        return
    process = _start()
    if process is None or process.stdin is None:
        yield Watcher(-1)
        return
    watcher = Watcher(process.stdin.fileno())
    try:
        yield watcher
    finally:
        watcher.end()
        _stop(process)


def supervised_by(pipe: int) -> Watcher:
    """Notes that this process was started by a supervisor, which reads from that pipe."""
    global _supervisor
    _supervisor = pipe
    return Watcher(pipe)


def _start() -> subprocess.Popen[bytes] | None:
    """Starts a watcher beside this process; a session of its own keeps it clear of Ctrl-C."""
    import subprocess  # the command line has a supervisor, and no need of it

    root = str(Path(__file__).parents[2])
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid()), root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # whose end is the watcher's, which is no child of this process
            start_new_session=True,
            bufsize=0,
        )
    except OSError:  # no more processes, or no such Python: the run is worth more than its watcher
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Waits for the watcher's end, once it was sent that the run is over."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    with process.stdout:
        select.select([process.stdout], [], [], _STOP_TIMEOUT_S)
