"""Files outside of the working folder that a job opens by Python: they get what one process would write.

All workers run the job, and those of a host see the same files there. Rows that each of them appends would be
there several times, and of those that create a file or folder all but the first would fail.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import site
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from raydist.spec.text import DETAIL
from raydist.training import tf_private

# How long a worker that is the first to append waits to know what the chief has not appended.
_WAIT_S = 5.0
_LIBRARIES = (os.path.dirname(os.__file__), *site.getsitepackages())


@contextlib.contextmanager
def written_as_by_one(
    is_shared: Callable[[Any], bool], *, is_chief: bool, note: Callable[[str], None]
) -> Iterator[None]:
    """Has the block's job write, append to and create files, and create folders, as one process would.

    The chief does it in place. The others append to copies, and write copies of files that are written
    already. Their Python reads the copies from then on.

    Args:
      is_shared: Whether other workers may write a path, too.
      note: Adds a sentence to the run's notes.
    """
    files = _Files(is_chief=is_chief, note=note)
    open_file, make_folder = builtins.open, os.mkdir

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_written = isinstance(mode, str) and not mode.strip("bt").startswith("r")
        if not (is_written or files.copies) or not isinstance(file, str | os.PathLike):
            return open_file(file, mode, *args, **kwargs)
        path = os.path.abspath(file)
        if not is_written:
            return open_file(files.copies.get(path, file), mode, *args, **kwargs)
        if not is_shared(file) or _is_raydists(sys._getframe(1)):
            return open_file(file, mode, *args, **kwargs)
        if "x" in mode:
            with contextlib.suppress(FileExistsError):
                return open_file(file, mode, *args, **kwargs)
            if not (_is_of_job(sys._getframe(1)) and files.is_new(path)):
                raise FileExistsError(f"[Errno 17] File exists: {file!r}")
            mode = mode.replace("x", "w")
        return open_file(files.place_of(path, appends="a" in mode), mode, *args, **kwargs)

    def made(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make_folder(path, *args, **kwargs)
        except FileExistsError:
            is_expected = is_shared(path) and _is_of_job(sys._getframe(1)) and os.path.isdir(path)
            if not (is_expected and files.is_new(path)):
                raise

    with (
        tf_private.changed(builtins, open=opened),
        tf_private.changed(io, open=opened),
        tf_private.changed(os, mkdir=made),
    ):
        yield


class _Files:
    """The files of this worker.

    Attributes:
      copies: By path what this worker reads in its place.
    """

    def __init__(self, *, is_chief: bool, note: Callable[[str], None]) -> None:
        self._is_chief, self._note = is_chief, note
        self._begun_s = time.time()
        self._appended: set[str] = set()
        self._unread: dict[str, str] = {}  # copies to which rows go, that are not whole
        self.copies: dict[str, str] = {}

    def is_new(self, path: Any) -> bool:
        """Whether something is there that was made, or written, since the job has begun."""
        try:
            return os.stat(path).st_ctime >= self._begun_s
        except OSError:
            return False

    def place_of(self, path: str, *, appends: bool) -> str:
        """Returns what a worker opens that writes a file, or appends to it."""
        if self._is_chief:
            if appends and path not in self._appended:
                self._appended.add(path)
                size = os.path.getsize(path) if os.path.exists(path) else 0
                tf_private.tell_workers(_key_of(path), str(size))
            return path
        if not appends:
            self._unread.pop(path, None)
            if self.is_new(path) and path not in self.copies:
                self.copies[path] = _made_copy(b"")
            return self.copies.get(path, path)
        if path not in self.copies and path not in self._unread:
            before = self._size_before(path)
            kept = self._unread if before is None else self.copies
            kept[path] = _made_copy(_first_bytes(path, before) if before else b"")
            self._note(f"{DETAIL}only the chief appends to {path}, which all workers open")
        return self.copies.get(path) or self._unread[path]

    def _size_before(self, path: str) -> int | None:
        """Returns how large a file was before the chief appended to it; None where that is not known."""
        if not self.is_new(path):
            return os.path.getsize(path) if os.path.exists(path) else 0
        told = tf_private.told_by_worker(_key_of(path), timeout_s=_WAIT_S)
        return None if told is None else int(told)


def _key_of(path: str) -> str:
    return f"raydist/appended{path}"


def _first_bytes(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def _made_copy(content: bytes) -> str:
    handle, copy = tempfile.mkstemp(prefix="raydist-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return copy


def _is_of_job(frame: FrameType | None) -> bool:
    """Whether the job's own code calls, maybe through Python's own; a library may mean a lock by it."""
    while frame is not None and frame.f_globals.get("__name__") in ("os", "pathlib"):
        frame = frame.f_back
    if frame is None or _is_raydists(frame):
        return False
    return not frame.f_code.co_filename.startswith(_LIBRARIES)


def _is_raydists(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("raydist.")
