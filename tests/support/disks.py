"""Disks of a given size, and hosts that have another disk where this one has its own. Need root."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(path: Path, *, size: str | None) -> Iterator[Path]:
    """Mounts an empty disk of that size (`64k`, `8m`) at `path`; skips the test where this is not allowed.

    With None it is one that tells no size.
    """
    path.mkdir(exist_ok=True)
    kind = ["ramfs"] if size is None else ["tmpfs", "-o", f"size={size}"]
    mount = ["mount", "-t", *kind, "none", str(path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield path
    finally:
        # Lazily: a process that was just killed may hold a file of it for a moment yet.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def behind_another_disk(path: Path) -> list[str]:
    """Returns what to put before a command so that it finds an empty disk at `path`, and only it does."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    script = f'mount -t tmpfs tmpfs {shlex.quote(str(path))} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]
