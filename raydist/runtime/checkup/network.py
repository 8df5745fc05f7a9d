"""Addresses and listening sockets of this host, as the kernel's /proc has them, and what a link carries."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import threading
import time
from pathlib import Path

_LISTEN = "0A"
_ANY = {"0" * 8, "0" * 32}
_TASK = "ray::TaskActor"
_CHUNK = b"\0" * 2**20
_MAX_BYTES = 64 * 2**20
_MAX_S = 2.0
_TIMEOUT_S = 10.0


def public_addresses(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Returns the public addresses of this host; those of a NAT in front of it are unknown."""
    found = {*_ipv4(proc / "net/fib_trie"), *_ipv6(proc / "net/if_inet6")}
    return tuple(sorted(one for one in found if ipaddress.ip_address(one).is_global))


def ports_of_tasks(proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Returns the ports on which tasks of runs listen on all addresses; those of this user's runs."""
    listening = {**_listening(proc / "net/tcp"), **_listening(proc / "net/tcp6")}
    ports: set[int] = set()
    for comm in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if not comm.read_text().startswith(_TASK):
                continue
            links = [os.readlink(each) for each in (comm.parent / "fd").iterdir()]
            ports.update(listening[link] for link in links if link in listening)
    return tuple(sorted(ports))


class Sink:
    """Accepts one connection and reads it to its end, in a thread."""

    def __init__(self) -> None:
        self._server = socket.create_server(("", 0), backlog=1)
        self._server.settimeout(_TIMEOUT_S)
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._server:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(_TIMEOUT_S)
                while connection.recv(len(_CHUNK)):
                    pass
                connection.sendall(b"!")


def send(host: str, port: int) -> float:
    """Sends to a Sink for up to 2 s, and returns the bytes a second that have arrived; raises OSError."""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        begun_s, sent = time.perf_counter(), 0
        while sent < _MAX_BYTES and time.perf_counter() - begun_s < _MAX_S:
            connection.sendall(_CHUNK)
            sent += len(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"!":
            raise ConnectionResetError("the connection was cut")
        return sent / (time.perf_counter() - begun_s)


def _ipv4(file: Path) -> set[str]:
    with contextlib.suppress(OSError):
        return set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", file.read_text()))
    return set()


def _ipv6(file: Path) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(ipaddress.ip_address(int(line.split()[0], 16))) for line in file.read_text().splitlines()}
    return set()


def _listening(file: Path) -> dict[str, int]:
    """Returns the ports of sockets that listen on all addresses, by the name that a descriptor links to."""
    found = {}
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN and address in _ANY:
                found[f"socket:[{fields[9]}]"] = int(port, 16)
    return found
