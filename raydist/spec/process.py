"""Which process drives a run: told in run.json, so that `raydist stop` reaches it and no other one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, str | int | None]:
    """Returns host, pid and when the process was started, which tells it from a later one with its pid."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": _start_of(os.getpid()),
        "pid_space": _pid_space(),
    }


def is_this_host(process: Mapping[str, Any]) -> bool:
    """Whether the pid of that process means the same here: containers can share a host name, but not pids."""
    space = process.get("pid_space")
    return bool(process["host"] == socket.gethostname() and space in (None, _pid_space()))


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether that process of this host still lives."""
    try:
        os.kill(int(process["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(process["start"] == _start_of(int(process["pid"])))


def _pid_space() -> str | None:
    """Returns the boot of this host and its pid namespace; None where there is no /proc to tell them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid: int) -> int | None:
    """Returns the start in clock ticks since the host's boot; None where there is no /proc to tell it."""
    try:
        # The name, in brackets, may hold spaces: proc(5).
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
