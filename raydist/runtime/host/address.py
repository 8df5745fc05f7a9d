"""Where a Ray may run, and which variables lead connections through a proxy, found without importing ray."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydist.errors import SpecError

ADDRESS_VARIABLE = "RAY_ADDRESS"
CLIENT_PREFIX = "ray://"
LOCAL = "local"

_PROBE_TIMEOUT_S = 1.0
_ADDRESS_CHARS = 1024
# In /proc/net/tcp: TCP_LISTEN.
_LISTENS = "0A"


def running_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns RAY_ADDRESS, else the address of a Ray that `ray start` left running here, else None.

    RAY_ADDRESS is taken at its word. The file that `ray start` leaves counts only if this user or root
    owns it, and what listens there. It is checked by a TCP connection, as it outlives a crashed Ray.
    """
    given = environ.get(ADDRESS_VARIABLE, "")
    if given not in ("", "auto"):
        return None if given == LOCAL else given
    recorded = recorded_address(environ)
    if recorded is None:
        return None
    with contextlib.suppress(SpecError):
        host, port = split_address(recorded)
        if not _is_of_others(host, port) and accepts_tcp(host, port, timeout_s=_PROBE_TIMEOUT_S):
            return recorded
    return None


def split_address(address: str, *, name: str = "address") -> tuple[str, int]:
    """Returns host and port of `host:port`, `[ipv6]:port` or `ray://host:port`.

    Args:
      name: What was set to it, for the message.

    Raises:
      SpecError: It has another form, or a port that cannot be.
    """
    bare = address.removeprefix(CLIENT_PREFIX)
    match = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:/\[\]]+)):(?P<port>\d{1,5})/?", bare)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise SpecError(f"{name} is {address!r}; write local, auto, HOST:PORT or ray://HOST:PORT")
    return match["six"] or match["host"], int(match["port"])


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, an IPv6 address in brackets."""
    # TensorFlow splits at the last colon, gRPC wants the brackets.
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def accepts_tcp(host: str, port: int, *, timeout_s: float) -> bool:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def _is_of_others(host: str, port: int) -> bool:
    """Whether a process of another user, which is not root, listens at that port of this host."""
    users = set()
    for file in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # not every host has IPv6
            for line in Path("/proc/self/net", file).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user = line.split()[:8]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    users.add(int(user))
    if not users - {0, os.geteuid()}:
        return False
    with contextlib.suppress(OSError):
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0))  # an address of this host
            return True
    return False


def ray_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns where a Ray that is told nothing else keeps its sessions."""
    # As in ray/_common/utils.py, get_default_ray_temp_dir.
    folder = (
        environ.get("RAY_TMPDIR") or (sys.platform.startswith("linux") and environ.get("TMPDIR")) or "/tmp"
    )
    return Path(folder) / "ray"


def recorded_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns what the file that `ray start` leaves says, if it can be believed."""
    # As in ray/_common/utils.py, get_ray_address_file.
    path = ray_folder(environ) / "ray_current_cluster"
    try:
        # Every user can write to Ray's folder, and the file says which Ray gets the code and the token.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
                return None
            return file.read(_ADDRESS_CHARS).strip() or None
    except (OSError, ValueError):
        return None


_NAMES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy")


def proxies_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of those that are set."""
    return tuple(name for name in (*_NAMES, *map(str.upper, _NAMES)) if environ.get(name))


def describe_proxies(names: Sequence[str]) -> str:
    return f"{', '.join(names)} set; tasks do not use them for each other" if names else "none"
