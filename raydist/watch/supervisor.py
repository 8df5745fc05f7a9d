"""A supervisor: the thin parent of a command's process, which stays when Ray ends that one."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from dataclasses import dataclass

from raydist.watch import watcher
from raydist.watch.messages import Heard
from raydist.watch.watcher import Watcher

_FIRST_FREE_FD = 3
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class DriverEnd:
    """How the child ended.

    Attributes:
      code: Its exit code; minus the signal that killed it.
    """

    heard: Heard
    code: int


def fork_driver() -> Watcher | DriverEnd:
    """Goes on in a child, where it returns the watcher; returns in the parent once the child has ended.

    For a process with one thread that has imported little: the child inherits all of it. A parent that
    is killed has its child stop the run as Ctrl-C does.
    """
    facts_out, facts_in = _pipe()
    alive_out, alive_in = _pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started this process
            stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child:
        os.close(facts_in)
        os.close(alive_out)
        code = _wait(child)
        return DriverEnd(heard=Heard.of(_read_all(facts_out)), code=code)
    os.close(facts_out)
    os.close(alive_in)
    # Also before the run begins, when `signal.default_int_handler` is what SIGINT has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    threading.Thread(target=_stop_with_parent, args=(alive_out,), name="raydist-parent", daemon=True).start()
    return watcher.supervised_by(facts_in)


def _pipe() -> tuple[int, int]:
    """Makes a pipe that takes the place of no standard stream which is closed."""
    ends = os.pipe()
    out, into = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in ends)
    for fd in ends:
        os.close(fd)
    return out, into


def _wait(child: int) -> int:
    """Waits for the child's end, and passes on what other processes send meanwhile."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # an ignored one could not be waited for
        signal.signal(number, signal.SIG_DFL)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        info = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        # What the kernel sends, as for Ctrl-C, goes to all of the terminal's processes: the child has it.
        if info.si_signo != signal.SIGCHLD and info.si_code <= 0:
            os.kill(child, info.si_signo)


def _read_all(pipe: int) -> bytes:
    """Reads what is in the pipe; a process that the child has started may hold its other end."""
    os.set_blocking(pipe, False)
    told = b""
    try:
        while chunk := os.read(pipe, 1 << 16):
            told += chunk
    except BlockingIOError:
        pass
    return told


def _stop_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # returns when the parent is gone
    os.kill(os.getpid(), signal.SIGINT)
