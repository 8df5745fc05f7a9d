"""An embedded Ray's session: its folder below /tmp/ray, and the processes that write there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path


def remove_session(session: Path) -> None:
    """Deletes the folder of sockets and logs, which ray.shutdown leaves behind. Idempotent."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def end_session(session: Path) -> None:
    """Ends what is left of an embedded Ray whose driver has died, and deletes its folder.

    Ray's own processes die with the driver, but for agents and workers, which take a while to notice.
    """
    for pid in _processes_of(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_session(session)


def _processes_of(session: Path) -> list[int]:
    """Returns the processes that have a file of the session open: Ray renames them, so no name tells."""
    mine = f"{session}{os.sep}"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or one that has just ended
            if any(_target(fd).startswith(mine) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
