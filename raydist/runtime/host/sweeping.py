"""Sweeping: removes what processes that were killed have left on this host. Imports no ray."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from raydist.runtime.host.address import ray_folder
from raydist.runtime.host.scratch import hold_lock, is_private, locked_by_nobody, scratch_root, sweep
from raydist.runtime.host.session import remove_session

# Held by the process that has started the Ray, as long as that lives. Ray's own folders have no such file.
_SESSION_LOCK = "raydist.lock"


def sweep_host() -> None:
    """Removes scratch folders of dead tasks and the folders of embedded Rays whose process was killed.

    Only those of this user. Each command begins with it, and a folder that cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        root = scratch_root()
        if is_private(root):
            sweep(root)
    with contextlib.suppress(OSError):
        for lock in sorted(ray_folder().glob(f"session_*/{_SESSION_LOCK}")):
            _sweep_session(lock)


def mark_session(session: Path) -> Callable[[], None]:
    """Marks the folder of a Ray that this process has started; returns how to remove it after its end."""
    lock_fd = hold_lock(session / _SESSION_LOCK)

    def remove() -> None:
        remove_session(session)
        os.close(lock_fd)

    return remove


def _sweep_session(lock: Path) -> None:
    session = lock.parent
    status = session.lstat()
    if session.is_symlink() or status.st_uid != os.getuid():
        return
    with contextlib.suppress(OSError), locked_by_nobody(lock) as is_dead:
        if is_dead:
            remove_session(session)
