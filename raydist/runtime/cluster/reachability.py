"""Reach: whether silent tasks' processes and hosts are still there, asked by TCP and never waited for.

Ray 2.60 counts on a host that has vanished for more than a minute (five health checks in a row have to fail,
of 10 s each with 3 s in between), and a TCP connection to it does not break either. But the kernel of a host
that is up accepts or refuses a new connection at once, even if its processes are busy.
"""

from __future__ import annotations

import enum
import errno
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable

from raydist.runtime.host.address import split_address
from raydist.spec.tasks import TaskId

# A host is given up when it has not answered for this long; TensorFlow's own heartbeats take 20 s.
GONE_AFTER_S = 2.1
# The same where no other one answers either: it may be this process's network that is interrupted.
ALL_GONE_AFTER_S = 8.0
_MIN_TRIES = 3
_TRY_S = _NEXT_TRY_S = 0.7
# Ray's own account of a death says more than a refused connection, and mostly comes sooner than this.
_REFUSED_AFTER_S = 0.5
# How long all tries together are waited for in one look.
_LOOK_S = 0.02
_PENDING = (errno.EINPROGRESS, errno.EALREADY)


class Outcome(enum.Enum):
    """What became of one try to connect."""

    ACCEPTED = "ACCEPTED"
    REFUSED = "REFUSED"  # the host is up, but no process listens there
    NONE = "NONE"


class Loss(enum.Enum):
    """What is missing."""

    HOST = "HOST"
    PROCESS = "PROCESS"


class Reachability:
    """Probes of the addresses of the tasks. Not to be used from several threads at once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._probes: dict[TaskId, Probe] = {}
        self._wanted: set[TaskId] = set()
        self._looked_at: set[TaskId] = set()  # at the last look
        self._without_host: set[TaskId] = set()

    def open(self, task: TaskId, address: str) -> None:
        """Begins to look at a task's process, or at the one in its place, at `ip:port`."""
        self.close([task])
        self._probes[task] = Probe(address)
        self._wanted.add(task)

    def renew(self, task: TaskId) -> None:
        """Has a task that trains looked at once more, so that it is known whether it listens. Idempotent."""
        probe = self._probes.get(task)
        if probe is not None and not probe.is_renewed:
            probe.is_renewed = probe.is_wanted = True
            self._wanted.add(task)

    def look(self, suspects: Collection[TaskId]) -> dict[TaskId, Loss]:
        """Looks at what was opened or renewed, and at `suspects`; returns what is missing of them.

        To be called again and again: one look takes at most about 20 ms, with or without an answer.
        """
        now_s = self._clock()
        looked_at = self._wanted.union(suspects) & self._probes.keys()
        for task in self._looked_at - looked_at:
            self._probes[task].cancel()
        self._looked_at = looked_at
        probes = {task: self._probes[task] for task in looked_at}
        for probe in probes.values():
            probe.connect(now_s)
        _await_outcomes(probes.values(), timeout_s=_LOOK_S)
        for probe in probes.values():
            probe.check(now_s)
        self._wanted.difference_update(task for task, probe in probes.items() if not probe.is_wanted)
        is_one_there = any(probe.is_there for probe in self._probes.values())
        gone_after_s = GONE_AFTER_S if is_one_there else ALL_GONE_AFTER_S
        losses = {
            task: probes[task].loss(now_s, gone_after_s=gone_after_s) for task in probes.keys() & suspects
        }
        self._without_host.update(task for task, loss in losses.items() if loss is Loss.HOST)
        return {task: loss for task, loss in losses.items() if loss is not None}

    @property
    def is_waiting(self) -> bool:
        """Whether a connection is under way, so that the next look should come soon."""
        return any(self._probes[task].is_connecting for task in self._looked_at)

    def lost(self) -> frozenset[TaskId]:
        """Returns the tasks whose hosts are gone."""
        return frozenset(self._without_host)

    def unanswered(self) -> frozenset[TaskId]:
        """Returns the tasks whose hosts are gone, or did not answer when they were looked at last."""
        now = (task for task, probe in self._probes.items() if probe.num_unanswered > 0)
        return frozenset(self._without_host.union(now))

    def close(self, tasks: Iterable[TaskId] | None = None) -> None:
        """Looks no more at those tasks, or at any. Idempotent."""
        for task in list(self._probes) if tasks is None else tasks:
            for tasks_of_a_kind in (self._without_host, self._wanted, self._looked_at):
                tasks_of_a_kind.discard(task)
            probe = self._probes.pop(task, None)
            if probe is not None:
                probe.cancel()


class Probe:
    """Connections to one address, one after the other, each closed as soon as it is known how it ends.

    Attributes:
      has_accepted: Whether somebody ever listened there.
      is_wanted: Whether an answer is wanted without any suspicion, to compare later ones with.
      is_renewed: Whether it was wanted again since the task trains.
      num_unanswered: Tries in a row without an answer.
    """

    def __init__(self, address: str) -> None:
        self._host, self._port = split_address(address)
        self._socket: socket.socket | None = None
        self._tried_at_s = 0.0
        self._next_try_at_s = 0.0
        self._has_answered = False
        self._unanswered_since_s: float | None = None
        self._refused_since_s: float | None = None
        self.has_accepted = False
        self.is_wanted = True
        self.is_renewed = False
        self.num_unanswered = 0

    @property
    def is_connecting(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def connect(self, now_s: float) -> None:
        """Begins to connect, unless that is under way or too soon."""
        if self._socket is not None or now_s < self._next_try_at_s:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket, self._tried_at_s = socket.socket(family, socket.SOCK_STREAM), now_s
        self._socket.setblocking(False)
        outcome = self._socket.connect_ex((self._host, self._port))
        if outcome not in _PENDING:
            self._take(_outcome_of(outcome), now_s)

    def check(self, now_s: float) -> None:
        """Takes the answer, if there is one by now."""
        if self._socket is None:
            return
        if select.select([], [self._socket], [], 0)[1]:
            outcome = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._take(_outcome_of(outcome), now_s)
        elif now_s - self._tried_at_s >= _TRY_S:
            self._take(Outcome.NONE, now_s)

    @property
    def is_there(self) -> bool:
        """Whether its host has answered, the last time that it was asked."""
        return self._has_answered and not self.num_unanswered

    def loss(self, now_s: float, *, gone_after_s: float) -> Loss | None:
        """Returns what is missing that was there before."""
        unanswered, refused = self._unanswered_since_s, self._refused_since_s
        if unanswered is not None and self._has_answered and self.num_unanswered >= _MIN_TRIES:
            return Loss.HOST if now_s - unanswered >= gone_after_s else None
        if refused is not None and self.has_accepted:
            return Loss.PROCESS if now_s - refused >= _REFUSED_AFTER_S else None
        return None

    def cancel(self) -> None:
        """Gives up what is under way: the task has spoken, or is not to be looked at any more."""
        self._close_socket()
        self._unanswered_since_s = self._refused_since_s = None
        self.num_unanswered = 0

    def _take(self, answer: Outcome, now_s: float) -> None:
        self._close_socket()
        if answer is Outcome.NONE:
            self.num_unanswered += 1
            if self._unanswered_since_s is None:
                self._unanswered_since_s = self._tried_at_s
            self._next_try_at_s = self._tried_at_s + _NEXT_TRY_S
            return
        refused_since_s = self._refused_since_s
        self.cancel()
        self.is_wanted = False
        self._has_answered = True
        if answer is Outcome.ACCEPTED:
            self.has_accepted = True
            self._next_try_at_s = now_s + _NEXT_TRY_S
        else:
            self._refused_since_s = self._tried_at_s if refused_since_s is None else refused_since_s
            self._next_try_at_s = now_s + _REFUSED_AFTER_S

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def not_listening(addresses: Collection[str], *, timeout_s: float) -> frozenset[str]:
    """Returns those of the addresses (`ip:port`) that accept no connection in `timeout_s`."""
    started_at_s = time.monotonic()
    probes = {address: Probe(address) for address in addresses}
    try:
        for probe in probes.values():
            probe.connect(started_at_s)
        _await_outcomes(probes.values(), timeout_s=timeout_s)
        for probe in probes.values():
            probe.check(started_at_s)
        return frozenset(address for address, probe in probes.items() if not probe.has_accepted)
    finally:
        for probe in probes.values():
            probe.cancel()


def _await_outcomes(probes: Iterable[Probe], *, timeout_s: float) -> None:
    """Waits until all connections that are under way have ended one way or another, or the time is up."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()  # select() takes no more than 1024 of them
    left = {probe.fileno() for probe in probes if probe.is_connecting}
    for fd in left:
        poll.register(fd, select.POLLOUT)
    while left:
        for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            poll.unregister(fd)
            left.discard(fd)
        if time.monotonic() >= deadline:
            return


def _outcome_of(outcome: int) -> Outcome:
    if outcome == 0:
        return Outcome.ACCEPTED
    return Outcome.REFUSED if outcome in (errno.ECONNREFUSED, errno.ECONNRESET) else Outcome.NONE
