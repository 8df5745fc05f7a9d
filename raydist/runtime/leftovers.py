"""Leftovers: what the tasks of a controller that died have left on their hosts."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydist.runtime.log_capture import LogTarget
from raydist.runtime.salvage import salvage
from raydist.runtime.scratch import owner_pid, scratch_root
from raydist.spec.tasks import TaskId

logger = logging.getLogger(__name__)

# More than a host takes to wait for its processes' deaths, kill them, and store the ends of their logs.
_TIMEOUT_S = 30.0


def new_owner() -> str:
    """Returns a mark that no other controller's processes have."""
    return uuid.uuid4().hex[:8]


def clear(owner: str, *, storage_uri: str, run: str) -> None:
    """Ends what processes with that mark are left on any host, and stores the ends of their logs.

    Ray itself ends the actors of a controller that dies, and gives their room back; this waits until they
    are gone. A host that does not answer is left alone: the attempt in a checkpoint's name fences it off.
    """
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    refs = [_clear_there(node_id, owner, storage_uri, run) for node_id in nodes]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=_TIMEOUT_S)
    for ref in ready:
        try:
            ray.get(ref)
        except RayError as error:
            logger.warning("a host could not be cleared: %s", error)
    if late:
        logger.warning("%d of %d hosts could not be cleared in time", len(late), len(refs))


def clear_here(owner: str, *, storage_uri: str, run: str) -> None:
    """Does so on this host."""
    root = scratch_root()
    for path in sorted(root.iterdir()) if root.exists() else ():
        target = log_target_of(path, owner, storage_uri=storage_uri, run=run)
        if target is not None:
            with contextlib.suppress(FileNotFoundError):  # another Ray node of this host was quicker
                salvage(path, target, pid=owner_pid(path))


def log_target_of(scratch_path: Path, owner: str, *, storage_uri: str, run: str) -> LogTarget | None:
    """Returns where the log in a scratch folder belongs; None for a folder without that mark."""
    name = scratch_path.name
    pattern = rf"{re.escape(run)}-(\d+)-([a-z-]+)-(\d+)-{re.escape(owner)}-(\d+)"
    match = re.fullmatch(pattern, name)
    if match is None:
        return None
    attempt, task_type, index, life = match.groups()
    task = TaskId.parse(f"{task_type}/{index}")
    return LogTarget(storage_uri=storage_uri, run=run, task=task, attempt=int(attempt), life=int(life))


def _clear_there(node_id: str, owner: str, storage_uri: str, run: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    clear_task = ray.remote(cast(Any, clear_here))
    options = clear_task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return options.remote(owner, storage_uri=storage_uri, run=run)
