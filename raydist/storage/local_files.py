"""Local files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_aside(path: Path, write: Callable[[BinaryIO], object], *, is_durable: bool) -> None:
    """Creates or replaces the file with what `write` puts in, making its folder; leaves no part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as target:
            write(target)
            if is_durable:
                target.flush()
                os.fsync(target.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a rename inside `folder` outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
