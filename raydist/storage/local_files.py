"""Local files that appear, and grow, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

# File systems without hard links: FAT, some of SMB and FUSE.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# From that size on a durable file is written past the page cache.
_LARGE_BYTES = 64 * 1024 * 1024
_DIRECT_BYTES = 8 * 1024 * 1024  # at once: a multiple of each disk's blocks


def files_below(folder: str, *, is_inside: Callable[[str], bool]) -> Iterator[tuple[str, int, int]]:
    """Yields the path, the size in bytes and the time of change in ns of each regular file below a folder.

    Leaves out files that vanish meanwhile and names that are no text, and takes a missing folder as empty.

    Args:
      is_inside: Whether a link's path may be followed. A folder that several links lead to is entered once.
    """
    entered: set[str] = set()
    ahead = [folder]
    while ahead:
        with contextlib.suppress(FileNotFoundError), os.scandir(ahead.pop()) as entries:
            for entry in entries:
                is_link = entry.is_symlink()
                if _is_no_text(entry.name) or (is_link and not is_inside(entry.path)):
                    continue
                if entry.is_dir():
                    if is_link:
                        target = os.path.realpath(entry.path)
                        if target in entered:
                            continue
                        entered.add(target)
                    ahead.append(entry.path)
                elif entry.is_file():
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat()
                        yield entry.path, found.st_size, found.st_mtime_ns


def _is_no_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


def create_whole(path: Path, data: bytes) -> bool | None:
    """Creates the file with its content, unless there is one; of several callers one gets True.

    Returns None where the file system has no hard links, and nothing was done. A link, and not O_EXCL: no
    reader finds the file without its content. Both are atomic on NFS.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The folder may be removed right now, by another process that gives up its file in it.
        with contextlib.suppress(FileNotFoundError):
            return _link_whole(path, data)


def _link_whole(path: Path, data: bytes) -> bool | None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as target:
            target.write(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS sends a request again whose answer was lost: then the file is this one.
            return os.path.samefile(temporary, path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return None
            raise
    finally:
        temporary.unlink(missing_ok=True)
    return True


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


def write_all(target: BinaryIO, data: bytes, *, is_durable: bool) -> None:
    """Writes an empty file. Large durable files are written with O_DIRECT if the file system supports it.

    The page cache costs about ten times the CPU time, which the training beside it needs.
    """
    content = memoryview(data).cast("B")
    num_blocks = len(content) // _DIRECT_BYTES if is_durable and len(content) >= _LARGE_BYTES else 0
    written = _write_directly(target.fileno(), content[: num_blocks * _DIRECT_BYTES]) if num_blocks else 0
    target.seek(written)
    target.write(content[written:])


def _write_directly(descriptor: int, content: memoryview) -> int:
    """Writes whole blocks to an empty file; returns how many bytes it could."""
    flags, written = fcntl.fcntl(descriptor, fcntl.F_GETFL), 0
    with mmap.mmap(-1, _DIRECT_BYTES) as memory, memoryview(memory) as aligned:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            while written < len(content):
                aligned[:] = content[written : written + _DIRECT_BYTES]
                size = os.write(descriptor, aligned)
                written += size
                if size < _DIRECT_BYTES:  # a disk that becomes full
                    break
        except OSError:  # the write by the page cache succeeds, or tells what is wrong
            pass
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


def append_whole(path: Path, data: bytes) -> None:
    """Adds to the end of the file, making it and its folder; through no link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o666), "wb", buffering=0) as target:
        size = os.fstat(target.fileno()).st_size
        try:
            written = 0
            while written < len(data):
                written += target.write(data[written:])
            os.close(os.dup(target.fileno()))  # NFS writes when a descriptor is closed, and may be full
        except BaseException:
            target.truncate(size)
            raise


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Creates or replaces the file piece by piece, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as target:
        target.writelines(chunks)


def _sync_folder(folder: Path) -> None:
    """Makes a rename inside `folder` outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
