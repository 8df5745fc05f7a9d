"""PortLease: a port that stays ours until TensorFlow takes it."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable

from raydist.errors import ClusterError
from raydist.private_folders import locked, run_folder
from raydist.spec.job import PortRange

_RETRY_S = 0.02


class PortLease:
    """Holds a port of this host by a bound socket that does not listen.

    TensorFlow, with TF_GRPC_REUSE_PORT=true, binds the same port while the lease still stands; a
    port that is only looked up and released again may go to somebody else in between.
    The runner closes the lease once TensorFlow has the port.
    """

    def __init__(self, *, bound: socket.socket) -> None:
        self._bound = bound
        self._ports: PortRange | None = None
        self._guard: Callable[[int], None] = lambda port: None
        self.port: int = bound.getsockname()[1]

    @classmethod
    def acquire(cls, ports: PortRange | None = None) -> PortLease:
        """Leases the first free port of `ports`; None takes any free port.

        Raises:
          ClusterError: Every port of the range is in use.
        """
        if ports is None:
            # The kernel never hands out a port that is bound already, not even to SO_REUSEPORT.
            return cls(bound=_bind(0, reuse_port=True))
        for port in range(ports.low, ports.high + 1):
            lease = cls._try(port)
            if lease is not None:
                lease._ports = ports
                return lease
        raise ClusterError(
            f"every port of --ports {ports} is in use on {socket.gethostname()}; "
            "give a wider range, one port for each task that may share a host"
        )

    def guarded(self, guard: Callable[[int], None]) -> PortLease:
        """Calls `guard` with this port and with each of `another`, before anybody can listen there."""
        self._guard = guard
        guard(self.port)
        return self

    def another(self) -> PortLease:
        """Leases one more port where this one came from; raises ClusterError as `acquire` does."""
        lease = PortLease.acquire(self._ports)
        self._guard(lease.port)
        return lease

    @classmethod
    def acquire_again(cls, port: int, *, timeout_s: float) -> PortLease | None:
        """Leases the port of a process that died, once it is really gone; None when somebody else has it."""
        deadline = time.monotonic() + timeout_s
        while (lease := cls._try(port)) is None and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        return lease

    @classmethod
    def _try(cls, port: int) -> PortLease | None:
        with locked(run_folder() / "ports.lock"):  # or two could look at the same time, and bind one port
            try:
                # Without SO_REUSEPORT first: with it, the bind would succeed beside a server of this user's.
                _bind(port, reuse_port=False).close()
                return cls(bound=_bind(port, reuse_port=True))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return None
                raise

    def close(self) -> None:
        """Gives the port up. Idempotent."""
        self._bound.close()

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _bind(port: int, *, reuse_port: bool) -> socket.socket:
    """Binds all interfaces, as TensorFlow's server does: it listens at [::], or 0.0.0.0 without IPv6."""
    try:
        bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0", port, reuse_port)
    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return _bound(bound, "::", port, reuse_port)


def _bound(unbound: socket.socket, host: str, port: int, reuse_port: bool) -> socket.socket:
    with contextlib.ExitStack() as on_error:
        on_error.callback(unbound.close)
        # SO_REUSEADDR only to look: a port whose last connections are in TIME_WAIT is free. A lease
        # must not have it, or any other server that has it too could bind the port beside the lease.
        option = socket.SO_REUSEPORT if reuse_port else socket.SO_REUSEADDR
        unbound.setsockopt(socket.SOL_SOCKET, option, 1)
        unbound.bind((host, port))
        on_error.pop_all()
    return unbound
