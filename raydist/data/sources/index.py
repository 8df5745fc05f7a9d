"""The index of a file that has none: where its groups of rows begin, found once and kept on the host."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from raydist.data.sources.files import DataFiles
from raydist.storage.local_files import write_aside

# The most of a group, which is read at once.
GROUP_BYTES = 1 << 20
GROUP_ROWS = 4096
# Of a file that is looked through, and files at once where each is waited for.
READ_BYTES = 8 << 20
INDEX_THREADS = 8


def index_of(
    files: DataFiles, number: int, kind: str, scan: Callable[[DataFiles, int], np.ndarray]
) -> np.ndarray:
    """Returns what `scan` returns for a file, which the first task of a host keeps for the others.

    That is where the groups begin, int64 `[groups + 1, 3]`: the first byte, the first row, and a number
    that is the caller's. The last row is the end of the file.

    Args:
      kind: Another one for each kind of index.
    """
    place = _cache_place(kind, files.uri(number), files.version(number))
    if place is not None and (kept := _kept(place, files.size(number))) is not None:
        return kept
    index = scan(files, number)
    if place is not None:
        # Where it cannot be written to, the index is built again the next time.
        with suppress(OSError):
            write_aside(place, lambda file: np.save(file, index), is_durable=False)
    return index


def _kept(place: Path, size: int) -> np.ndarray | None:
    try:
        with place.open("rb") as file:
            kept: np.ndarray = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_index = kept.dtype == np.int64 and kept.ndim == 2 and kept.shape[1] == 3 and len(kept)
    return kept if is_index and kept[-1, 0] == size else None


def _cache_place(kind: str, uri: str, version: tuple[int, int | None]) -> Path | None:
    folder = os.environ.get("RAYDIST_CACHE")
    if not folder:
        try:
            folder = str(Path.home() / ".cache" / "raydist")
        except RuntimeError:  # a user without a home, as containers have
            return None
    name = hashlib.sha256(f"{uri} {version}".encode()).hexdigest()[:32]
    return Path(folder) / kind / f"{name}.npy"
