"""Leftovers: what the tasks of a controller that died have left on this host. Needs no Ray."""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.salvage import salvage
from raydist.runtime.host.scratch import owner_pid, scratch_root
from raydist.spec.tasks import parse_any_task


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
