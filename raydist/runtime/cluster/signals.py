"""Sends signals to tasks, on whichever host they run."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from raydist.errors import ClusterError
from raydist.runtime.cluster.connection import EmbeddedSize, connect
from raydist.spec.tasks import TaskId

# What the two processes of a task are called: its agent, and the one that trains.
_TASK_PROCESSES = (b"ray::TaskActor", b"raydist::")


def signal_task(
    pid: int, number: int, *, run: str, task: TaskId, host: str, address_of: Callable[[], str | None]
) -> None:
    """Sends signal `number` to the task of a run that is process `pid` of `host`.

    The pid may come from anybody who can write to the run's storage. So the process has to have files open in
    the scratch folder of this task, which tells it from what else the user runs there.

    Args:
      host: Its address as Ray knows it.
      address_of: Returns the Ray to join where `host` is not this one, or raises why none is.

    Raises:
      ClusterError: The process is no longer that task, or its host cannot be reached.
    """
    asked = (pid, number, run, task)
    is_task = _signal(*asked) if _is_here(host) else _signal_there(asked, host, address_of())
    if not is_task:
        raise ClusterError(f"process {pid} of host {host} is no longer {task} of run {run}")


def _signal(pid: int, number: int, run: str, task: TaskId) -> bool:
    """Returns whether the process was that task, and got the signal."""
    try:
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_TASK_PROCESSES):
            return False
        if not _has_files_of(pid, run, task):
            return False
        if number in (signal.SIGUSR1, signal.SIGUSR2) and not _catches(pid, number):
            return False  # it would die of it: a task that has just begun, or of an older raydist
        os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it is gone, or another user's
        return False
    return True


def _has_files_of(pid: int, run: str, task: TaskId) -> bool:
    """Returns whether the process has files open in the scratch folder of the task, in any attempt."""
    folder = re.compile(rf"/{re.escape(run)}-\d+-{re.escape(task.path_name)}-[0-9a-f]+-\d+/")
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            if folder.search(os.readlink(file)):
                return True
    return False


def _catches(pid: int, number: int) -> bool:
    """Returns whether the process has a handler for the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.partition(":")[2] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def _is_here(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:  # a name server would be asked for it
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _signal_there(asked: tuple[int, int, str, TaskId], host: str, address: str | None) -> bool:
    import ray

    from raydist.runtime.cluster.inventory import alive_nodes, remote_on

    def refuse() -> EmbeddedSize:
        raise ClusterError(
            f"{asked[-1]} is on host {host!r}, and there is no Ray to reach it with; add --address HOST:PORT"
        )

    with connect(address, embedded=refuse):
        node_ids = [node["NodeID"] for node in alive_nodes() if node["NodeManagerAddress"] == host]
        if not node_ids:
            raise ClusterError(f"Ray knows no living host {host}")
        return bool(ray.get(remote_on(node_ids[0], _signal).remote(*asked)))
