"""What a task knows of its connections with the other tasks."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from raydist.spec.tasks import ClusterSpec, TaskType
from raydist.training.reporting.host_usage import TaskLinks, cut_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux measures connections")

# All of 127.0.0.0/8 is this host, so that tasks on several addresses can be had.
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@contextmanager
def listening(*hosts: str) -> Iterator[list[socket.socket]]:
    """Listens on a port of each address."""
    with ExitStack() as stack:
        servers = []
        for host in hosts:
            server = stack.enter_context(socket.socket())
            server.bind((host, 0))
            server.listen()
            servers.append(server)
        yield servers


def address_of(server: socket.socket) -> str:
    host, port = server.getsockname()[:2]
    return f"{host}:{port}"


def links_of(own: str | None, *addresses: str) -> TaskLinks:
    return TaskLinks(own, ClusterSpec(jobs=((TaskType.WORKER, addresses),)))


def exchange(client: socket.socket, server: socket.socket, *, times: int) -> None:
    for _ in range(times):
        client.sendall(b"ask")
        assert server.recv(10) == b"ask"
        server.sendall(b"answer")
        assert client.recv(10) == b"answer"


def test_channels_to_others_and_theirs_to_this_task_make_a_link_to_each_host() -> None:
    begun_s = time.monotonic()
    with ExitStack() as stack:
        own, *others = stack.enter_context(listening(*HOSTS))
        addresses = [address_of(one) for one in (own, *others)]
        links = links_of(addresses[0], *addresses)
        assert (links.host, links.read()) == ("127.0.0.1", ())
        there = stack.enter_context(socket.create_connection(others[0].getsockname()))
        stack.enter_context(others[0].accept()[0])
        # Not from 127.0.0.1, whose connection to itself is not a link.
        back = stack.enter_context(
            socket.create_connection(own.getsockname(), source_address=("127.0.0.3", 0))
        )
        accepted = stack.enter_context(own.accept()[0])
        exchange(back, accepted, times=5)
        first, second = links.read()
        assert (first.host, second.host) == ("127.0.0.2", "127.0.0.3")
        assert (first.sent, second.sent) == (0, 5)
        assert (first.resent, second.resent) == (0, 0)
        # Each was measured during this test.
        assert 0 < first.round_trip_s < time.monotonic() - begun_s
        assert 0 < second.round_trip_s < time.monotonic() - begun_s
        there.close()
        assert [one.host for one in links.read()] == ["127.0.0.3"]
        exchange(back, accepted, times=1)  # reading has not touched it


def test_server_for_both_versions_of_ip_has_ipv4_addresses_too() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        )
        port = server.getsockname()[1]
        links = links_of(f"127.0.0.1:{port}", f"127.0.0.1:{port}", "127.0.0.2:4444")
        client = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        stack.enter_context(client)
        stack.enter_context(server.accept()[0])
        assert [one.host for one in links.read()] == ["127.0.0.2"]


def test_everything_else_that_is_open_is_left_alone() -> None:
    """Other connections with the same hosts, other kinds of sockets, and those that nobody has accepted."""
    with ExitStack() as stack:
        own, other, storage, unrelated = stack.enter_context(listening(*HOSTS[:2], HOSTS[1], HOSTS[2]))
        links = links_of(address_of(own), address_of(own), address_of(other))
        for server in (storage, unrelated):
            stack.enter_context(socket.create_connection(server.getsockname()))
            stack.enter_context(server.accept()[0])
        stack.enter_context(socket.create_connection(own.getsockname(), source_address=("127.0.0.3", 0)))
        stack.enter_context(own.accept()[0])
        for one in (*socket.socketpair(), socket.socket(type=socket.SOCK_DGRAM), socket.socket()):
            stack.enter_context(one)
        stack.enter_context(open(__file__))
        before = set(os.listdir("/proc/self/fd"))
        assert links.read() == ()
        assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("own", "addresses"),
    [
        (None, ["10.0.0.1:1", "10.0.0.2:1"]),
        ("10.0.0.9:1", ["10.0.0.1:1", "10.0.0.2:1"]),
        ("worker-0:0", ["worker-0:0", "worker-1:0"]),
        ("10.0.0.1:1", []),
    ],
    ids=["no address", "an evaluator", "names", "no cluster"],
)
def test_task_outside_of_a_cluster_of_addresses_has_no_links(own: str | None, addresses: list[str]) -> None:
    links = links_of(own, *addresses)
    assert (links.host, links.read()) == (None, ())


def test_tasks_of_one_host_have_no_link() -> None:
    with listening(HOSTS[0], HOSTS[0]) as (own, other):
        links = links_of(address_of(own), address_of(own), address_of(other))
        with socket.create_connection(other.getsockname()):
            assert (links.host, links.read()) == (HOSTS[0], ())


def test_system_without_tcp_info_has_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert links_of("127.0.0.1:1", "127.0.0.1:1", "127.0.0.2:1").host is None


def test_connections_with_a_host_that_is_gone_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        gone, kept = (socket.create_connection(one.getsockname()) for one in (server, other))
        with gone, kept:
            cut_connections(f"127.0.0.1:{server.getsockname()[1]}")
            assert gone.recv(1) == b""  # a call that waits for an answer returns
            kept.sendall(b"x")
            with other.accept()[0] as accepted:
                assert accepted.recv(1) == b"x"
