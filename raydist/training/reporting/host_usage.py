"""What Linux measures on this task's host: who uses its CPUs, and the TCP connections to the other tasks."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import stat
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raydist.outcome.status import TaskLink
from raydist.spec.tasks import ClusterSpec

_PROC = Path("/proc")
# Of the first line of /proc/stat: user, nice, system, irq, softirq, steal. Time of guests is in the first
# two already.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
_NS_PER_S = 1e9


@dataclass(frozen=True, kw_only=True)
class CpuUsage:
    """Fields of `TaskPace`, by their names: sums in seconds, and the number of CPUs."""

    cpu_s: float
    run_delay_s: float | None
    other_cpu_s: float | None
    num_cpus: int


def read_cpu_usage() -> CpuUsage:
    """Returns what was used so far. Takes about 2 ms in a process of 100 threads."""
    cpu_s = time.process_time()
    host_s = _host_cpu_s()
    return CpuUsage(
        cpu_s=cpu_s,
        run_delay_s=_run_delay_s(),
        other_cpu_s=None if host_s is None else max(0.0, host_s - cpu_s),
        num_cpus=os.cpu_count() or 1,
    )


def _host_cpu_s() -> float | None:
    try:
        with (_PROC / "stat").open() as file:
            fields = file.readline().split()[1:]
        ticks = sum(int(fields[index]) for index in _BUSY_FIELDS)
    except (OSError, IndexError, ValueError):
        return None
    return float(ticks / os.sysconf("SC_CLK_TCK"))


def _run_delay_s() -> float | None:
    """Returns how long this process's threads waited for a CPU; None for a kernel that does not count it."""
    total, num_read = 0, 0
    try:
        threads = os.listdir(_PROC / "self" / "task")
    except OSError:
        return None
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended by now
        num_read += 1
    return total / _NS_PER_S if num_read else None


# Of `struct tcp_info` (linux/tcp.h), which has only ever got more fields at its end: state, total_retrans,
# min_rtt and data_segs_out. Older kernels return less of it.
_INFO = struct.Struct("=B99xI44xI4xI")
_ESTABLISHED = 1
_NOT_MEASURED = 0xFFFFFFFF
_US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True)
class _Connection:
    peer: str
    round_trip_s: float
    sent: int
    resent: int


class TaskLinks:
    """The connections of TensorFlow's own server and of its channels to those of the other tasks.

    Attributes:
      host: This task's IP address in the cluster; None in a task that is not in the cluster, that has a name
        instead of an address, or whose system is not Linux. It has no links then.
    """

    def __init__(self, address: str | None, cluster_spec: ClusterSpec) -> None:
        """Takes this task's `host:port` and everybody's."""
        every = {parsed for _, found in cluster_spec.jobs for one in found if (parsed := _parsed(one))}
        own = None if address is None else _parsed(address)
        is_measured = sys.platform == "linux" and own in every
        self.host: str | None = own[0] if own is not None and is_measured else None
        self._own = own
        self._peers = {one for one in every if own is not None and one[0] != own[0]}
        self._peer_hosts = {host for host, _ in self._peers}

    def read(self) -> tuple[TaskLink, ...]:
        """Returns a link for each other host of the cluster that this task is connected to now."""
        if self.host is None or not self._peers:
            return ()
        by_peer: defaultdict[str, list[_Connection]] = defaultdict(list)
        for one in self._connections():
            by_peer[one.peer].append(one)
        return tuple(
            TaskLink(
                host=peer,
                round_trip_s=min(one.round_trip_s for one in found),
                sent=sum(one.sent for one in found),
                resent=sum(one.resent for one in found),
            )
            for peer, found in sorted(by_peer.items())
        )

    def _connections(self) -> Iterator[_Connection]:
        for descriptor in _socket_descriptors():
            with contextlib.suppress(OSError), _copied(descriptor) as copy:
                if copy.type != socket.SOCK_STREAM or copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                own, peer = _endpoint(copy.getsockname()), _endpoint(copy.getpeername())
                # A channel to another task's server, or one of theirs to this task's.
                if peer in self._peers or (own == self._own and peer[0] in self._peer_hosts):
                    found = _measured(copy, peer=peer[0])
                    if found is not None:
                        yield found


def cut_connections(address: str) -> None:
    """Ends this process's connections to an IP address and port, so that no call waits for its answer."""
    peer = _parsed(address)
    for descriptor in _socket_descriptors():
        with contextlib.suppress(OSError), _copied(descriptor) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and _endpoint(copy.getpeername()) == peer:
                copy.shutdown(socket.SHUT_RDWR)


def _socket_descriptors() -> Iterable[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    yield int(name)


@contextlib.contextmanager
def _copied(descriptor: int) -> Iterator[socket.socket]:
    """Opens a second descriptor of a socket, so that the owner may close its own at any moment."""
    number = os.dup(descriptor)
    try:
        copy = socket.socket(fileno=number)
    except OSError:  # it is another file by now
        os.close(number)
        raise
    with copy:
        yield copy


def _measured(connection: socket.socket, *, peer: str) -> _Connection | None:
    """Returns the kernel's statistics of an open connection; None if the kernel is too old to have them."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    if len(info) < _INFO.size:
        return None
    state, resent, round_trip_us, sent = _INFO.unpack(info)
    if state != _ESTABLISHED or round_trip_us == _NOT_MEASURED:
        return None
    return _Connection(peer=peer, round_trip_s=round_trip_us / _US_PER_S, sent=sent, resent=resent)


def _parsed(address: str) -> tuple[str, int] | None:
    """Returns IP address and port of a `host:port`; None where the host is a name."""
    host, _, port = address.rpartition(":")
    try:
        return _plain_ip(host.strip("[]")), int(port)
    except ValueError:
        return None


def _endpoint(name: tuple[str, int]) -> tuple[str, int]:
    return _plain_ip(name[0]), name[1]


@functools.lru_cache(maxsize=1024)
def _plain_ip(text: str) -> str:
    """Returns an address as one text: a socket for both versions of IP has IPv4's within IPv6's."""
    found = ipaddress.ip_address(text)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
