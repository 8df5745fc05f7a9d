"""RecordCache: numbered records in files that all processes of a host share, or in one process's memory."""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import shutil
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from isal import isal_zlib

from raydist import private_folders

logger = logging.getLogger(__name__)

# A cache that no process has opened for so long is removed when another one is opened.
KEPT_S = 7 * 24 * 3600.0
# What stays free of the file system, or of the host's memory.
_FREE_SHARE = 0.1
_SLOT = struct.Struct("<QII")  # of a record: its offset, its length + 1, and its checksum
_SLOT_TYPE = np.dtype([("offset", "<u8"), ("length", "<u4"), ("checksum", "<u4")])


class RecordCache:
    """Numbered records, each written once. Safe to use from several threads.

    Two files: records in the order in which they were written, and a slot for each number. Several processes
    may append: the kernel keeps their records apart, and a slot is written after its record. A record whose
    checksum is wrong, as after a loss of power, is missing. Nothing is mapped that is written, as a full disk
    would kill a process that writes to a mapping.
    """

    def __init__(
        self, slots_fd: int, records_fd: int, num_records: int, *, max_bytes: float, root: Path | None
    ) -> None:
        """Takes the open files; `root` is where other caches are, None for one in memory."""
        os.ftruncate(slots_fd, num_records * _SLOT.size)  # without effect if it has this size
        self._slots_fd, self._records_fd = slots_fd, records_fd
        mapped = mmap.mmap(slots_fd, num_records * _SLOT.size, access=mmap.ACCESS_READ)
        self._slots = np.frombuffer(mapped, _SLOT_TYPE)
        for descriptor in (slots_fd, records_fd):
            weakref.finalize(self, os.close, descriptor)
        self._max_bytes, self._root = max_bytes, root
        self._lock = threading.Lock()
        self.is_full = False

    @classmethod
    def in_memory(cls, num_records: int, *, max_bytes: float) -> RecordCache:
        slots_fd, records_fd = os.memfd_create("raydist-slots"), os.memfd_create("raydist-records")
        fcntl.fcntl(records_fd, fcntl.F_SETFL, os.O_APPEND)
        return cls(slots_fd, records_fd, num_records, max_bytes=max_bytes, root=None)

    @classmethod
    def on_disk(cls, key: str, num_records: int, *, max_bytes: float) -> RecordCache:
        """Opens this host's cache of that name, which no process removes as long as this one lives.

        Raises:
          OSError: It cannot be made.
        """
        root = cache_folder()
        for path in _unused_for(root, KEPT_S):
            _remove(path)
        folder = root / key
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # removed just now
                slots_fd = private_folders.open_file(folder / "slots", os.O_RDWR | os.O_CREAT)
                fcntl.flock(slots_fd, fcntl.LOCK_SH)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(slots_fd), os.stat(folder / "slots")):
                        break
                os.close(slots_fd)
        os.utime(slots_fd)
        records_fd = private_folders.open_file(folder / "records", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        return cls(slots_fd, records_fd, num_records, max_bytes=max_bytes, root=root)

    def has(self, numbers: np.ndarray) -> np.ndarray:
        """Returns whether each record was written, bool `[n]`; it may turn out to be damaged."""
        return np.asarray(self._slots["length"][numbers] > 0)

    def get(self, number: int) -> bytes | None:
        """Returns a record; None if it is missing."""
        offset, length, checksum = self._slots[number].tolist()
        if not length:
            return None
        with suppress(OSError):
            content = os.pread(self._records_fd, length - 1, offset)
            if len(content) == length - 1 and _checksum(content, number) == checksum:
                return content
        return None

    def put(self, numbers: Sequence[int], records: Sequence[bytes]) -> None:
        """Writes records, until the cache is full; then it says so once, and writes nothing any more."""
        with self._lock:
            if self.is_full:
                return
            problem = self._problem(sum(map(len, records)))
            if problem is None:
                try:
                    for number, record in zip(numbers, records, strict=True):
                        self._append(number, record)
                except OSError as error:
                    problem = str(error.strerror)
            if problem is not None:
                self.is_full = True
                where = "memory" if self._root is None else self._root
                logger.warning("the cache of examples in %s takes no more: %s", where, problem)

    def _append(self, number: int, record: bytes) -> None:
        if os.write(self._records_fd, record) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        offset = os.lseek(self._records_fd, 0, os.SEEK_CUR) - len(record)
        slot = _SLOT.pack(offset, len(record) + 1, _checksum(record, number))
        os.pwrite(self._slots_fd, slot, number * _SLOT.size)

    def _problem(self, size: int) -> str | None:
        """Returns why so many bytes more are too many, after removing what no process uses."""
        problem = self._shortage(size)
        unused = [] if problem is None or self._root is None else _unused_for(self._root, 0)
        while problem is not None and unused:
            _remove(unused.pop(0))
            problem = self._shortage(size)
        return problem

    def _shortage(self, size: int) -> str | None:
        used = os.fstat(self._records_fd).st_size if self._root is None else _size_of(self._root)
        free, total = _memory() if self._root is None else _disk(self._root)
        if used + size > self._max_bytes:
            return f"max_gb={self._max_bytes / 1e9:g} is reached"
        if free - size < total * _FREE_SHARE:
            return f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free, and a tenth stays free"
        return None


def cache_folder() -> Path:
    """Makes and returns the folder of this host's caches, which is this user's alone."""
    if given := os.environ.get("RAYDIST_CACHE"):
        return private_folders.make([Path(given).absolute() / "examples"])
    return private_folders.make(private_folders.host_places("-examples"))


def _unused_for(root: Path, seconds: float) -> list[Path]:
    """Returns the caches that were opened longer ago than that, the first one first."""
    found: list[tuple[float, Path]] = []
    for path in root.iterdir():
        with suppress(OSError):
            found.append(((path / "slots").stat().st_mtime, path))
    return [path for opened_at, path in sorted(found) if opened_at < time.time() - seconds]


def _remove(path: Path) -> None:
    """Removes a cache, unless a process has it open."""
    with suppress(OSError):
        descriptor = private_folders.open_file(path / "slots", os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = path.with_name(f".{uuid.uuid4().hex}")
            path.rename(aside)  # who opens it now makes another one
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(descriptor)


def _size_of(root: Path) -> int:
    size = 0
    for path in root.glob("*/records"):
        with suppress(OSError):
            size += path.stat().st_size
    return size


def _disk(path: Path) -> tuple[int, int]:
    """Returns the bytes that are free for this user, and all bytes."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _memory() -> tuple[int, int]:
    """Returns the bytes of memory that are available, and all bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    found = {line[0]: int(line[1]) * 1024 for line in lines}
    return found["MemAvailable:"], found["MemTotal:"]


def _checksum(content: bytes, number: int) -> int:
    return int(isal_zlib.crc32(content, number & 0xFFFFFFFF))
