"""Salvage: what a task that died without an error leaves on its host."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from pathlib import Path

from raydist.errors import StorageError
from raydist.runtime.host.firewall.fence import lift_fences
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.oom import OomCounter
from raydist.runtime.host.post_mortem import Finding, examine
from raydist.runtime.host.scratch import adopted
from raydist.runtime.host.task_files import TaskFiles

logger = logging.getLogger(__name__)

_DEATH_TIMEOUT_S = 5.0
_POLL_S = 0.01


def salvage(
    scratch_path: Path, log: LogTarget, *, pid: int | None, oom: OomCounter | None = None
) -> Finding | None:
    """Uploads what a killed task has left, log and files, and deletes its scratch folder, on the task's host.

    Returns what the folder shows of the process's end; None where it was gone already, or the process alive.

    Waits until the process is really gone, which is a moment after Ray reports it, and kills it where
    Ray did not. A folder that the task has removed itself is fine.

    Args:
      pid: The task's process; None where it sent no hello.
      oom: As in `post_mortem.examine`.
    """
    if not scratch_path.exists():
        return None
    with adopted(scratch_path, timeout_s=_DEATH_TIMEOUT_S) as is_dead:
        if not is_dead and pid is not None:
            _kill(pid)
    with adopted(scratch_path, timeout_s=_DEATH_TIMEOUT_S):
        finding = examine(scratch_path, code=None, oom=oom) if is_dead else None
        try:
            log.open_uploader(scratch_path).flush()
        except StorageError as error:
            logger.warning("%s: the end of its log is lost: %s", log.task, error)
        if (files := TaskFiles.left_in(scratch_path, log)) is not None:
            files.store_rest()
        lift_fences(scratch_path)
        shutil.rmtree(scratch_path, ignore_errors=True)
    return finding


def wait_until_gone(pid: int) -> None:
    """Waits for a process of this host whose death Ray has announced already."""
    deadline = time.monotonic() + _DEATH_TIMEOUT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("process %d ended by itself", pid)
