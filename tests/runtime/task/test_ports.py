from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from raydist.errors import ClusterError
from raydist.runtime.task.ports import PortLease
from raydist.spec.job import PortRange


@contextlib.contextmanager
def server(port: int, *, reuse_port: bool) -> Iterator[socket.socket]:
    """A listening server on all interfaces, as gRPC's: dual-stack."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
        listening.bind(("::", port))
        listening.listen()
        yield listening


@pytest.fixture
def free_range() -> PortRange:
    """Two adjacent ports that nobody uses."""
    for low in range(29000, 29400, 2):
        with contextlib.suppress(OSError), server(low, reuse_port=False), server(low + 1, reuse_port=False):
            return PortRange(low=low, high=low + 1)
    raise AssertionError("no two free ports")


def test_server_takes_the_leased_port_and_is_reached_over_ipv4() -> None:
    with PortLease.acquire() as lease, server(lease.port, reuse_port=True) as listening:
        lease.close()
        with socket.create_connection(("127.0.0.1", lease.port), timeout=5) as client:
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(b"here")
            assert client.recv(4) == b"here"


def test_server_takes_the_port_while_the_lease_still_stands() -> None:
    with PortLease.acquire() as lease, server(lease.port, reuse_port=True) as listening:
        assert listening.getsockname()[1] == lease.port


def test_lease_keeps_the_port_from_anyone_else() -> None:
    with (
        PortLease.acquire() as lease,
        pytest.raises(OSError, match="in use"),
        server(lease.port, reuse_port=False),
    ):
        pass


def test_another_port_is_of_the_same_range(free_range: PortRange) -> None:
    with PortLease.acquire(free_range) as first, first.another() as second:
        assert [first.port, second.port] == [free_range.low, free_range.high]
        with pytest.raises(ClusterError, match="every port of --ports"):
            second.another()


def test_leases_of_any_port_differ() -> None:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(PortLease.acquire()).port for _ in range(50)]
    assert len(set(ports)) == 50


def test_range_is_used_from_its_low_end(free_range: PortRange) -> None:
    with PortLease.acquire(free_range) as first, PortLease.acquire(free_range) as second:
        assert (first.port, second.port) == (free_range.low, free_range.high)


def test_port_of_a_listening_server_is_passed_over(free_range: PortRange) -> None:
    # SO_REUSEPORT on both sides: a plain bind would succeed beside the server.
    with server(free_range.low, reuse_port=True), PortLease.acquire(free_range) as lease:
        assert lease.port == free_range.high


def test_used_up_range_is_named(free_range: PortRange) -> None:
    with PortLease.acquire(free_range), PortLease.acquire(free_range):
        with pytest.raises(ClusterError, match=f"every port of --ports {free_range} is in use"):
            PortLease.acquire(free_range)


def test_closed_lease_gives_its_port_back(free_range: PortRange) -> None:
    lease = PortLease.acquire(free_range)
    lease.close()
    lease.close()
    with PortLease.acquire(free_range) as again:
        assert again.port == free_range.low


def test_port_in_time_wait_is_free(free_range: PortRange) -> None:
    with server(free_range.low, reuse_port=True) as listening:
        client = socket.create_connection(("127.0.0.1", free_range.low))
        listening.accept()[0].close()  # closing first leaves TIME_WAIT on the server's side
        assert client.recv(1) == b""
        client.close()
    with PortLease.acquire(free_range) as lease:
        assert lease.port == free_range.low


def test_port_of_a_dead_process_is_leased_again() -> None:
    with PortLease.acquire() as lease:
        port = lease.port
    again = PortLease.acquire_again(port, timeout_s=0)
    assert again is not None
    with again, server(port, reuse_port=True):
        assert again.port == port


def test_port_is_waited_for_until_its_process_is_gone(free_range: PortRange) -> None:
    lease = PortLease.acquire(free_range)
    timer = threading.Timer(0.2, lease.close)
    timer.start()
    again = PortLease.acquire_again(free_range.low, timeout_s=10)
    timer.join()
    again.close()


@pytest.mark.parametrize("reuse_port", [False, True])
def test_port_that_somebody_else_has_is_not_leased_again(free_range: PortRange, reuse_port: bool) -> None:
    with server(free_range.low, reuse_port=reuse_port):
        assert PortLease.acquire_again(free_range.low, timeout_s=0.1) is None


def test_port_that_is_leased_again_is_locked(free_range: PortRange) -> None:
    again = PortLease.acquire_again(free_range.low, timeout_s=0)
    assert again is not None
    with again, PortLease.acquire(free_range) as other:
        assert other.port == free_range.high


def test_guard_gets_each_port_before_anybody_listens() -> None:
    guarded: list[int] = []
    with PortLease.acquire().guarded(guarded.append) as first, first.another() as second:
        assert guarded == [first.port, second.port]
