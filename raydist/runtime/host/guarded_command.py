"""GuardedCommand: a command that ends, with all its children, when this process does.

Its guard is a process of its own, which runs this file by its path, with a socket. The file therefore
imports the standard library only. The guard writes a line of JSON for what happens: `pid`, `exit_code`, or
`problem`. Once the other end of the socket is closed or says no more, however its process ended, the command
gets SIGTERM, then SIGKILL. The socket is closed when nothing of the command is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def guard(control: socket.socket, command: Sequence[str], *, grace_s: float) -> None:
    """Runs the command until it ends, or until the socket says no more."""
    # So that what the command leaves behind, in any session, becomes a child of this process.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        # In a thread-less process, so that code between fork and exec is safe.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_guard
        )
    except OSError as error:
        _tell(control, problem=f"{error.strerror}: {error.filename or command[0]}")
        return
    _tell(control, pid=child.pid)
    while (code := _reap(child.pid)) is None and not _is_asked_to_stop(control):
        pass
    if code is not None:
        _tell(control, exit_code=code)
    end_descendants(grace_s=grace_s)


def end_descendants(*, grace_s: float) -> None:
    """Sends SIGTERM to all descendants of this process, then SIGKILL, and waits until they are gone."""
    deadline = time.monotonic() + grace_s
    _send(signal.SIGTERM)
    while _has_children():
        if time.monotonic() >= deadline:
            _send(signal.SIGKILL)  # again and again: a child may be forked in between
        time.sleep(_POLL_S)


def _send(number: signal.Signals) -> None:
    for pid in list(_descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants(parent: int) -> Iterator[int]:
    for child in children_of(parent):
        yield from _descendants(child)
        yield child


def children_of(parent: int) -> list[int]:
    """Returns the processes that are children of a process; none once it has ended."""
    found: list[int] = []
    # A folder that goes while it is listed raises too, before Python 3.13.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def _has_children() -> bool:
    """Collects those that have ended; whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _reap(command_pid: int) -> int | None:
    """Returns the command's exit code, negative for a signal, once it has ended; collects orphans too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == command_pid:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _is_asked_to_stop(control: socket.socket) -> bool:
    """Waits a moment; whether the other end is closed, or says no more."""
    readable, _, _ = select.select([control], [], [], _POLL_S)
    try:
        return bool(readable) and not control.recv(1)
    except OSError:
        return True


def _tell(control: socket.socket, **news: object) -> None:
    with contextlib.suppress(OSError):  # the other end may be gone
        control.sendall(json.dumps(news).encode() + b"\n")


def _die_with_guard() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    """Calls prctl(2) for this process."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Takes the socket's descriptor, the seconds between the signals, and the command."""
    # Not a child of the process that started it: Ray kills the children of a worker that ends.
    if os.fork():
        os._exit(0)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: control.shutdown(socket.SHUT_RD))
    guard(control, sys.argv[3:], grace_s=float(sys.argv[2]))


# How long the guard may take beyond the time that the command has to end by itself.
_EXTRA_S = 5.0
_START_TIMEOUT_S = 30.0


class GuardedCommand:
    """A command that a process of its own watches (`guard`).

    Attributes:
      problem: Why the command could not be started; None where it was.
    """

    def __init__(self, control: socket.socket, *, grace_s: float) -> None:
        self._control = control
        self._news = control.makefile("rb")
        self._grace_s = grace_s
        self.problem: str | None = None

    @classmethod
    def start(
        cls, command: Sequence[str], *, folder: Path, environ: Mapping[str, str], grace_s: float
    ) -> GuardedCommand:
        """Starts the command in `folder`, with this process's output as its own.

        Args:
          grace_s: Seconds between SIGTERM and SIGKILL.
        """
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(grace_s)]
        with theirs:
            launcher = subprocess.Popen(
                [*program, *command],
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        launcher.wait(_START_TIMEOUT_S)
        made = cls(ours, grace_s=grace_s)
        made.problem = made._next_news().get("problem")
        return made

    def wait(self) -> int | None:
        """Waits until the command has ended by itself: its exit code, negative for a signal.

        None for one that was stopped, or whose guard was killed.
        """
        return self._next_news().get("exit_code")

    def stop(self) -> None:
        """Has the command and its children ended; `wait_until_gone` waits for that. Idempotent, from any
        thread."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the guard is gone

    def wait_until_gone(self) -> bool:
        """Waits until nothing of the command is left; False where that takes too long."""
        self._control.settimeout(self._grace_s + _EXTRA_S)
        try:
            while self._news.readline():
                pass
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Lets go of the command, which ends it where that has not been done. Idempotent."""
        self._news.close()
        self._control.close()

    def _next_news(self) -> dict[str, Any]:
        line = self._news.readline()
        return dict(json.loads(line)) if line else {}


if __name__ == "__main__":
    main()
