"""Addresses, listening sockets and links, from the kernel's own tables and over real sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from raydist.runtime.doctor.probe import Sink, ports_of_tasks, public_addresses, send

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.0.0.7
        /32 host LOCAL
     |-- 8.8.4.4
        /32 host LOCAL
     |-- 8.8.4.255
        /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
"""
IF_INET6 = """00000000000000000000000000000001 01 80 10 80       lo
20014860486000000000000000008888 02 40 00 80     eth0
"""
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:9C41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0
   1: 0100007F:9C42 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0
   2: 00000000:9C43 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 4244 1 0
   3: 00000000:9C44 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4245 1 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "fib_trie").write_text(FIB_TRIE)
    (tmp_path / "net" / "if_inet6").write_text(IF_INET6)
    (tmp_path / "net" / "tcp").write_text(TCP)
    for pid, name, inodes in ((7, "ray::TaskActor.", (4242, 4243, 4244)), (8, "nginx", (4245,))):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        for number, inode in enumerate(inodes):
            os.symlink(f"socket:[{inode}]", tmp_path / str(pid) / "fd" / str(number))
    return tmp_path


def test_addresses_that_the_internet_could_reach_are_found(proc: Path) -> None:
    assert public_addresses(proc) == ("2001:4860:4860::8888", "8.8.4.4")


def test_ports_on_which_tasks_listen_on_all_addresses_are_found(proc: Path) -> None:
    assert ports_of_tasks(proc) == (0x9C41,)


def test_host_without_proc_has_nothing_to_tell(tmp_path: Path) -> None:
    assert (public_addresses(tmp_path), ports_of_tasks(tmp_path)) == ((), ())


def test_kernel_here_can_be_read() -> None:
    assert "127.0.0.1" not in public_addresses()
    assert isinstance(ports_of_tasks(), tuple)


@pytest.mark.parametrize("host", ["127.0.0.1", *["::1"] * socket.has_dualstack_ipv6()])
def test_link_carries_what_is_sent(host: str) -> None:
    sink = Sink()
    assert send(host, sink.port) > 1e6


def test_link_that_is_refused_is_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="refused"):
            send("127.0.0.1", closed.getsockname()[1])
