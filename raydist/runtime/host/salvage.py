"""Salvage: what a task that died without an error, or a dead controller's tasks, left on this host."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import time
import uuid
from pathlib import Path

from raydist.errors import StorageError
from raydist.runtime.host.firewall import lift_fences
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.scratch import adopted, owner_pid, scratch_root
from raydist.runtime.host.task_files import TaskFiles
from raydist.spec.tasks import parse_any_task

logger = logging.getLogger(__name__)

_DEATH_TIMEOUT_S = 5.0
_POLL_S = 0.01


def salvage(
    scratch_path: Path, log: LogTarget, *, pid: int | None, patience_s: float = _DEATH_TIMEOUT_S
) -> None:
    """Uploads what a killed task has left, log and files, and deletes its scratch folder, on the task's host.

    Waits until the process is really gone, which is a moment after Ray reports it, and kills it where
    Ray did not. A folder that the task has removed itself is fine.

    Args:
      pid: The process that owns the folder; None where it sent no hello.
      patience_s: How long the process may take to end before it is killed.
    """
    try:
        _salvage(scratch_path, log, pid=pid, patience_s=patience_s)
    except FileNotFoundError:
        if scratch_path.exists():
            raise


def _salvage(scratch_path: Path, log: LogTarget, *, pid: int | None, patience_s: float) -> None:
    with adopted(scratch_path, timeout_s=patience_s) as is_dead:
        if not is_dead and pid is not None:
            _kill(pid)
    with adopted(scratch_path, timeout_s=_DEATH_TIMEOUT_S):
        try:
            log.open_uploader(scratch_path).flush()
        except StorageError as error:
            logger.warning("%s: the end of its log is lost: %s", log.task, error)
        if (files := TaskFiles.left_in(scratch_path, log)) is not None:
            files.store_rest()
        lift_fences(scratch_path)
        shutil.rmtree(scratch_path, ignore_errors=True)


def wait_until_gone(pid: int) -> None:
    """Waits for a process of this host whose death Ray has announced already."""
    deadline = time.monotonic() + _DEATH_TIMEOUT_S
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _lives(pid: int) -> bool:
    """Whether there is such a process.

    One that has ended stays as a zombie if its parent ended before it and the host's first process, as in
    many containers, does not care.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[:2] != ["Z", "1"]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("process %d ended by itself", pid)


def new_owner() -> str:
    """Returns a mark that no other controller's processes have."""
    return uuid.uuid4().hex[:8]


def clear_here(owner: str, *, storage_uri: str, run: str) -> None:
    """Ends processes with that mark, stores the ends of their logs, and deletes their folders."""
    root = scratch_root()
    for path in sorted(root.iterdir()) if root.exists() else ():
        target = log_target_of(path, owner, storage_uri=storage_uri, run=run)
        if target is not None:
            with contextlib.suppress(FileNotFoundError):  # another Ray node of this host was quicker
                salvage(path, target, pid=owner_pid(path))


def log_target_of(scratch_path: Path, owner: str, *, storage_uri: str, run: str) -> LogTarget | None:
    """Returns where the log in a scratch folder belongs; None for a folder without that mark."""
    name = scratch_path.name
    pattern = rf"{re.escape(run)}-(\d+)-([a-z][a-z0-9-]*)-(\d+)-{re.escape(owner)}-(\d+)"
    match = re.fullmatch(pattern, name)
    if match is None:
        return None
    attempt, task_type, index, incarnation = match.groups()
    task = parse_any_task(f"{task_type}/{index}")
    return LogTarget(
        storage_uri=storage_uri, run=run, task=task, attempt=int(attempt), incarnation=int(incarnation)
    )
