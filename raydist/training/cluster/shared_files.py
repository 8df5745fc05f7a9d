"""Files outside of the working folder that a job changes by Python: they get what one process would write.

All workers run the job, and those of a host see the same files there. Rows that each of them appends would be
there several times, and what one of them removes may be what the chief has just written.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import errno
import functools
import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from raydist import tf_private
from raydist.training.reporting import reporter

# How long a worker waits until the chief has changed a file or folder that the worker changes, too.
_WAIT_S = 5.0
# And how long in all for chiefs that do not: a file may have another name in each worker.
_VAIN_WAITS_S = 15.0
_PYTHONS = os.path.dirname(os.__file__)
# Python's own modules that change files where their caller asks for it.
_ASKED = ("os", "pathlib", "shutil", "logging", "logging.handlers")
# With these a path is relative to an open folder, or is no first argument.
_OF_FOLDERS = {"dir_fd", "src_dir_fd", "dst_dir_fd", "dst"}


@contextlib.contextmanager
def written_as_by_one(
    is_shared: Callable[[Any], bool],
    *,
    is_chief: bool,
    is_beside_chief: bool,
) -> Iterator[None]:
    """Has the block's job write, append to, create, move and remove files and folders as one process would.

    The chief does it in place, and first. The others write and append to copies, which their Python reads
    from then on. On a host that does not see the chief's files they write and remove in place.

    Args:
      is_shared: Whether other workers may change a path, too.
      is_beside_chief: Whether this worker is on the chief's host.
    """
    files = _Files(is_chief=is_chief, is_beside_chief=is_beside_chief)
    open_file, make_folder, remove_tree = builtins.open, os.mkdir, shutil.rmtree

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_change = isinstance(mode, str) and mode.strip("bt") not in ("r", "")
        if not (is_change or files.copies) or not isinstance(file, str | os.PathLike) or "opener" in kwargs:
            return open_file(file, mode, *args, **kwargs)
        path = os.path.abspath(file)
        if not is_change:
            return open_file(files.copies.get(path, file), mode, *args, **kwargs)
        if not is_shared(file) or _is_raydists(sys._getframe(1)):
            return open_file(file, mode, *args, **kwargs)
        if "x" in mode:
            with contextlib.suppress(FileExistsError):
                return open_file(file, mode, *args, **kwargs)
            if not (_is_of_job(sys._getframe(1)) and files.is_new(path)):
                raise FileExistsError(f"[Errno 17] File exists: {file!r}")
            mode = mode.replace("x", "w")
        with files.place_of(path, mode) as place:
            return open_file(place, mode, *args, **kwargs)

    def made(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            in_place = functools.partial(make_folder, path, *args, **kwargs)
            is_one = not _OF_FOLDERS & {*kwargs} and _is_of_job(sys._getframe(1)) and is_shared(path)
            files.make_folder(in_place, path) if is_one else in_place()
        except FileExistsError:
            is_expected = is_shared(path) and _is_of_job(sys._getframe(1)) and os.path.isdir(path)
            if not (is_expected and (files.is_new(path) or os.path.abspath(path) in files.gone)):
                raise
        files.gone.discard(os.path.abspath(path))

    def by_one(change: Callable[..., Any], *, is_move: bool = False) -> Callable[..., Any]:
        @functools.wraps(change)
        def changed(path: Any, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if is_move and args else path
            is_plain = isinstance(target, str | os.PathLike) and not _OF_FOLDERS & {*kwargs}
            # First who calls: tempfile holds a lock that is_shared needs.
            if not (is_plain and _is_of_job(sys._getframe(1)) and is_shared(target)):
                return change(path, *args, **kwargs)

            in_place = functools.partial(change, path, *args, **kwargs)
            return files.change(in_place, path, to=target if is_move else None)

        return changed

    removals = {"remove": by_one(os.remove), "unlink": by_one(os.unlink), "rmdir": by_one(os.rmdir)}
    moves = {"rename": by_one(os.rename, is_move=True), "replace": by_one(os.replace, is_move=True)}
    with (
        tf_private.changed(builtins, open=opened),
        tf_private.changed(io, open=opened),
        tf_private.changed(tarfile, bltn_open=opened),
        tf_private.changed(os, mkdir=made, **removals, **moves),
        tf_private.changed(shutil, rmtree=by_one(remove_tree)),
    ):
        yield


class _Files:
    """The files of this worker.

    Attributes:
      copies: By path what this worker reads in its place.
      gone: What it has removed or moved away, as far as it knows.
    """

    def __init__(self, *, is_chief: bool, is_beside_chief: bool) -> None:
        self._is_chief, self._is_beside_chief = is_chief, is_beside_chief
        self._begun_s = time.time()
        self._vain_s = 0.0
        self._num_changes: collections.Counter[str] = collections.Counter()
        self._opened: set[str] = set()  # by the chief; by another worker, in place
        self._unread: dict[str, str] = {}  # copies to which rows go, that are not whole
        self.copies: dict[str, str] = {}
        self.gone: set[str] = set()

    def is_new(self, path: Any) -> bool:
        """Whether something is there that was made, or written, since the job has begun."""
        try:
            return os.stat(path).st_ctime >= self._begun_s
        except OSError:
            return False

    @contextlib.contextmanager
    def place_of(self, path: str, mode: str) -> Iterator[str]:
        """Gives the block what it opens in the place of a path, to change it."""
        if not self._is_chief:
            yield self.copies.get(path) or self._place_of_other(path, mode)
            return
        size = os.path.getsize(path) if os.path.exists(path) else 0
        yield path
        if path not in self._opened:
            self._opened.add(path)
            tf_private.tell_workers(_key_of("opened", path), str(size))

    def _place_of_other(self, path: str, mode: str) -> str:
        if "a" in mode and path in self._unread:
            return self._unread[path]
        self._unread.pop(path, None)
        told = self._told(_key_of("opened", path))
        before: int | None = 0
        if "a" in mode and path not in self.gone:
            on_disk = os.path.getsize(path) if os.path.exists(path) else 0
            before = on_disk if told is None and not self.is_new(path) else told
        elif "r" in mode and os.path.exists(path):  # maybe with what the chief has changed
            before = os.path.getsize(path)
        elif not (self.is_new(path) or (told is not None and self._is_beside_chief)):
            self._opened.add(path)
            return path
        kept = self._unread if before is None else self.copies
        kept[path] = _made_copy(_first_bytes(path, before) if before else b"")
        self.gone.discard(path)
        reporter.detail(f"only the chief changes {path}, which all workers open")
        return kept[path]

    def make_folder(self, in_place: Callable[[], Any], path: Any) -> None:
        """Makes a folder, where the chief has not made it for all."""
        place = os.path.abspath(path)
        key = self._key_of_next("made", place)
        if self._is_chief:
            _telling(key, in_place)
        elif self._told(key) != 0 or not os.path.isdir(place):
            in_place()

    def _key_of_next(self, change: str, path: str) -> str:
        self._num_changes[change + path] += 1
        return _key_of(f"{change}/{self._num_changes[change + path]}", path)

    def change(self, in_place: Callable[[], Any], path: Any, *, to: Any) -> Any:
        """Removes a file or folder, or moves it, by `in_place` or by what this worker remembers of it."""
        source, target = os.path.abspath(path), os.path.abspath(path if to is None else to)
        key = self._key_of_next("removed" if to is None else "moved", target)
        if self._is_chief:
            return _telling(key, in_place)
        told = self._told(key)
        if told:
            raise OSError(told, os.strerror(told), os.fspath(path))
        copy = self._taken(source)
        if to is not None:
            self._taken(target)
            if copy is None and told is not None and self._is_beside_chief and os.path.isfile(source):
                copy = _made_copy(_first_bytes(source, -1))  # its own, or made again by the chief
            if copy is not None:
                self.copies[target] = copy
        self.gone.add(source)
        if source in self._opened if self._is_beside_chief else not self.is_new(source):
            self._opened.discard(source)
            with contextlib.suppress(FileNotFoundError):
                return os.remove(source) if copy is not None else in_place()
        elif copy is None and not os.path.lexists(source) and not self.is_new(os.path.dirname(source)):
            return in_place()
        return None

    def _taken(self, path: str) -> str | None:
        """Forgets the copies of a path, and of what is in it; returns its own."""
        copy = self.copies.get(path) or self._unread.get(path)
        for copies in (self.copies, self._unread):
            for one in [one for one in copies if one == path or one.startswith(f"{path}{os.sep}")]:
                del copies[one]
                self.gone.add(one)
        return copy

    def _told(self, key: str) -> int | None:
        """Returns what the chief tells when it makes the same change; None where that is not known."""
        begun_s = time.monotonic()
        timeout_s = min(_WAIT_S, max(_VAIN_WAITS_S - self._vain_s, 0.05))
        if (told := tf_private.told_by_worker(key, timeout_s=timeout_s)) is not None:
            return int(told)
        self._vain_s += time.monotonic() - begun_s
        return None


def _telling(key: str, change: Callable[[], Any]) -> Any:
    """Has the chief change something, and tell the others of it, or of the error that they get, too."""
    try:
        result = change()
    except OSError as error:
        tf_private.tell_workers(key, str(error.errno or errno.EIO))
        raise
    tf_private.tell_workers(key, "0")
    return result


def _key_of(change: str, path: str) -> str:
    return f"raydist/{change}{path}"


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
    while frame is not None and frame.f_globals.get("__name__") in _ASKED:
        frame = frame.f_back
    return not (frame is None or _is_library(frame) or _is_raydists(frame))


def _is_raydists(frame: FrameType | None) -> bool:
    """Whether raydist calls, maybe through a library."""
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("raydist."):
        frame = frame.f_back if _is_library(frame) else None
    return frame is not None


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_PYTHONS) or any(one in name for one in ("site-packages", "dist-packages"))
