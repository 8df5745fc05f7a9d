"""A supervisor: the thin parent of a command's process, which stays when Ray ends that one."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType

from raydist.watch import watcher
from raydist.watch.watcher import DriverFacts, Watcher

_FIRST_FREE_FD = 3
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Signals of one kind within this time count as one: `timeout` sends one to its child, one to the group.
_SAME_S = 0.3


@dataclass(frozen=True, kw_only=True)
class DriverEnd:
    """How the child ended.

    Attributes:
      code: Its exit code; minus the signal that killed it.
    """

    facts: DriverFacts
    code: int


def fork_driver() -> Watcher | DriverEnd:
    """Continues in a child, where it returns the watcher; returns in the parent once the child has ended.

    For a process with one thread that has imported little: the child inherits all of it. A parent that
    is killed has its child stop the run as Ctrl-C does.
    """
    facts_out, facts_in = _pipe()
    alive_out, alive_in = _pipe()
    receipts_out, receipts_in = _pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the parent process
            stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child:
        os.close(facts_in)
        os.close(alive_out)
        os.close(receipts_in)
        code = _wait(child, receipts_out)
        return DriverEnd(facts=DriverFacts.of(_read_all(facts_out)), code=code)
    os.close(facts_out)
    os.close(alive_in)
    _send_receipts(receipts_in)
    # Also before the run begins, when `signal.default_int_handler` is what SIGINT has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _hang_up)
    # It inherits that signals are blocked: one that it took, as a process that was stopped may give it to any
    # thread, would not wake the main thread.
    threading.Thread(target=_stop_with_parent, args=(alive_out,), name="raydist-parent", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return watcher.supervised_by(facts_in)


def _hang_up(number: int, frame: FrameType | None) -> None:
    """Ends the run as Ctrl-C does, once: a shell that ends and the kernel both send this signal."""
    signal.signal(number, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _pipe() -> tuple[int, int]:
    """Makes a pipe that takes the place of no standard stream which is closed."""
    ends = os.pipe()
    out, into = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in ends)
    for fd in ends:
        os.close(fd)
    return out, into


def _send_receipts(pipe: int) -> None:
    """Has Python write the number of each signal into the pipe at once, even if the main thread is busy.

    This process keeps the other end open too: Python reports an error for a pipe without a reader.
    """
    os.set_blocking(pipe, False)
    signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def _wait(child: int, receipts: int) -> int:
    """Waits for the child's end, and passes on the signals that only this process was sent.

    A signal to the process group, or to all of a cgroup, reaches the child as well. Another one while a run
    stops makes it stop at once, so the child must not get this process's copy too. Whether it was sent one
    shows in its receipts. A child that has not run yet writes none, but merges the copy with the one pending.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # an ignored one could not be waited for
        signal.signal(number, signal.SIG_DFL)
    received: dict[int, float] = {}
    held: dict[signal.Signals, float] = {}
    threading.Thread(
        target=_note_receipts, args=(receipts, received), name="raydist-receipts", daemon=True
    ).start()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        info = _next_signal(due_s=min(held.values()) + _SAME_S if held else None)
        # What the kernel sends, as for Ctrl-C, goes to all of the terminal's processes: the child has it.
        # But a terminal that is closed is told to the first process of its session alone.
        is_sent = info is not None and (info.si_code <= 0 or info.si_signo == signal.SIGHUP)
        if info is not None and info.si_signo != signal.SIGCHLD and is_sent:
            held.setdefault(signal.Signals(info.si_signo), time.monotonic())
        for number, since_s in tuple(held.items()):
            if time.monotonic() < since_s + _SAME_S:
                continue
            del held[number]
            if received.get(number, 0.0) < since_s - _SAME_S:
                os.kill(child, number)


def _next_signal(*, due_s: float | None) -> signal.struct_siginfo | None:
    """Waits for a signal; returns None when there was none by then."""
    signals = {*_PASSED_ON, signal.SIGCHLD}
    if due_s is None:
        return signal.sigwaitinfo(signals)
    return signal.sigtimedwait(signals, max(0.0, due_s - time.monotonic()))


def _note_receipts(pipe: int, received: dict[int, float]) -> None:
    """Notes when the child last got each signal."""
    while numbers := os.read(pipe, 1 << 10):
        received.update(dict.fromkeys(numbers, time.monotonic()))


def _read_all(pipe: int) -> bytes:
    """Reads what is in the pipe; a process that the child has started may hold its other end."""
    os.set_blocking(pipe, False)
    received = b""
    try:
        while chunk := os.read(pipe, 1 << 16):
            received += chunk
    except BlockingIOError:
        pass
    return received


def _stop_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # returns when the parent is gone
    os.kill(os.getpid(), signal.SIGINT)
