"""Reach with real sockets: what a process, and what a host that is gone looks like from outside."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from raydist.runtime.cluster.reachability import (
    ALL_GONE_AFTER_S,
    GONE_AFTER_S,
    Loss,
    Reachability,
    not_listening,
)
from raydist.spec.tasks import TaskId
from tests.support.fakes import FakeClock

TASK, OTHER = TaskId.parse("worker/0"), TaskId.parse("worker/1")

Look = Callable[[], dict[TaskId, Loss]]


class Server:
    """A listening port; `deaf` makes it one of a host that does not answer."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listening.setblocking(False)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Leaves no room for those who want to connect, whereupon the kernel drops what they send."""
        self._listening.listen(0)
        with ExitStack() as stack:
            for _ in range(8):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(self._listening.getsockname())
            yield
        self._listening.listen(128)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listening.accept()[0].close()

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reach(clock: FakeClock) -> Iterator[Reachability]:
    reach = Reachability(clock=clock.now)
    yield reach
    reach.close()


def look_for(reach: Reachability, clock: FakeClock, seconds: float) -> dict[TaskId, Loss]:
    """Looks at the task as a suspect, four times a second of the clock."""
    found: dict[TaskId, Loss] = {}
    for _ in range(round(seconds * 4)):
        clock.advance(0.25)
        found = reach.look([TASK])
    return found


def test_silent_task_whose_host_answers_is_left_alone(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    reach.open(TASK, server.address)
    assert look_for(reach, clock, 20) == {}
    assert reach.unanswered() == frozenset()


def test_port_that_nobody_listens_at_any_more_is_a_dead_process(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    reach.open(TASK, server.address)
    assert look_for(reach, clock, 1) == {}
    server.close()
    assert look_for(reach, clock, 3) == {TASK: Loss.PROCESS}


def test_port_that_nobody_ever_listened_at_says_nothing_of_its_process(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    server.close()
    reach.open(TASK, server.address)
    assert look_for(reach, clock, 20) == {}


def test_host_that_stops_answering_is_gone_after_a_while(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    reach.open(TASK, server.address)
    assert look_for(reach, clock, 1) == {}
    with server.deaf():
        assert look_for(reach, clock, ALL_GONE_AFTER_S / 2) == {}
        assert reach.unanswered() == {TASK}
        assert look_for(reach, clock, ALL_GONE_AFTER_S) == {TASK: Loss.HOST}
        assert reach.look([]) == {}  # no suspect any more, since it is known
        assert reach.unanswered() == {TASK}


def test_host_that_stops_answering_while_another_one_answers_is_gone_soon(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    other = Server()
    try:
        reach.open(TASK, server.address)
        reach.open(OTHER, other.address)
        assert look_for(reach, clock, 1) == {}
        with server.deaf():
            assert look_for(reach, clock, GONE_AFTER_S) == {}
            assert look_for(reach, clock, 1.5) == {TASK: Loss.HOST}
    finally:
        other.close()


def test_host_that_answers_again_in_time_is_not_gone(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    reach.open(TASK, server.address)
    look_for(reach, clock, 1)
    with server.deaf():
        look_for(reach, clock, ALL_GONE_AFTER_S / 2)
    assert look_for(reach, clock, 2 * ALL_GONE_AFTER_S) == {}
    assert reach.unanswered() == frozenset()


def test_host_that_never_answered_is_not_held_for_gone(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    with server.deaf():
        reach.open(TASK, server.address)
        assert look_for(reach, clock, 3 * ALL_GONE_AFTER_S) == {}


def test_task_that_speaks_is_not_looked_at(reach: Reachability, clock: FakeClock, server: Server) -> None:
    reach.open(TASK, server.address)
    look_for(reach, clock, 1)
    with server.deaf():
        for _ in range(60):
            clock.advance(0.5)
            assert reach.look([]) == {}
        assert not reach.is_waiting


def test_process_in_place_of_a_dead_one_is_looked_at_anew(
    reach: Reachability, clock: FakeClock, server: Server
) -> None:
    reach.open(TASK, server.address)
    look_for(reach, clock, 1)
    server.close()
    assert look_for(reach, clock, 3) == {TASK: Loss.PROCESS}
    successor = Server()
    try:
        reach.open(TASK, successor.address)
        assert look_for(reach, clock, 3) == {}
    finally:
        successor.close()


def test_addresses_where_nobody_listens_are_told_from_the_others(server: Server) -> None:
    deaf, closed = Server(), Server()
    closed.close()
    try:
        with deaf.deaf():
            addresses = [server.address, deaf.address, closed.address]
            assert not_listening(addresses, timeout_s=0.3) == {deaf.address, closed.address}
    finally:
        deaf.close()
