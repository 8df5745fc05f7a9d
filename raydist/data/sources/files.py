"""DataFiles: the files of a source, which must not change while they are read."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from raydist.data.shared import divided
from raydist.data.sources.ahead import in_order
from raydist.errors import DataError, StorageError
from raydist.spec.secrecy import redact
from raydist.storage.failures import is_transient
from raydist.storage.filesystem import FoundFile, Storage
from raydist.storage.s3 import MAX_REQUESTS

_SECOND_NS = 10**9
_UNKNOWN_NS = -1
# Of each file's beginning and end; there Parquet has its footer with the statistics of all columns.
_END_BYTES = 1 << 16
_MOST_CHECKSUMS = 1000
_FILE_THREADS = 16

Result = TypeVar("Result")
# A file or a folder, or several of these, as a source takes them.
Uri = str | os.PathLike[str]
Uris = Uri | Sequence[Uri]


class _Listing(NamedTuple):
    """The files below a URI, as columns, because there may be millions."""

    keys: pa.LargeStringArray
    sizes: np.ndarray  # in bytes
    times_ns: np.ndarray  # of the last change, since 1970, or _UNKNOWN_NS

    @classmethod
    def of(cls, files: Sequence[FoundFile]) -> _Listing:
        times = [_UNKNOWN_NS if file.modified_ns is None else file.modified_ns for file in files]
        return cls(
            pa.array([file.key for file in files], pa.large_string()),
            np.array([file.size_bytes for file in files], np.int64),
            np.array(times, np.int64),
        )


class DataFiles:
    """Files below some URIs, numbered in the order of the URIs and of the names below each.

    Holds no connection, so that it can be sent to another process, which may have copies of its own: each
    task has one of the job's folder, and hosts may have the same data on their disks.
    """

    def __init__(self, uris: Uris, *, what: str, is_wanted: Callable[[str], bool] = lambda key: True) -> None:
        """Looks for the files.

        Args:
          uris: Files and folders, as paths or URIs.
          what: The function that was called, for messages.
          is_wanted: Whether a file of a folder, by its key below it, is one of the data.

        Raises:
          DataError: There are none, a URI cannot be listed, or is neither text nor a path.
          StorageError: Storage does not answer.
        """
        self._uris = _as_texts(uris, what)
        self._storages: dict[int, Storage] = {}
        # What another process has seen in the files that it sent, and what this one has in their place.
        self._sent: dict[int, int] | None = None
        self._checksums: dict[int, int] | None = None
        self._copies: dict[int, FoundFile] = {}
        listings = [_listed(uri, what, is_wanted) for uri in self._uris]
        if not listings:
            raise DataError(f"{what} got no URI; give a file, or a folder that holds some")
        self._uri_of = np.repeat(
            np.arange(len(listings), dtype=np.int32), [len(one.keys) for one in listings]
        )
        self._keys = pa.concat_arrays([one.keys for one in listings])
        self._sizes = np.concatenate([one.sizes for one in listings])
        self._times_ns = np.concatenate([one.times_ns for one in listings])

    def __getstate__(self) -> dict[str, Any]:
        relative = {number: path for number, uri in enumerate(self._uris) if (path := _within_folder(uri))}
        own: dict[str, Any] = {"_storages": {}, "_copies": {}, "_checksums": None}
        return {**self.__dict__, **own, "_sent": self._known_checksums(), "_relative": relative}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for number, path in self.__dict__.pop("_relative").items():
            # A path into the sender's copy of the job's folder, which another host does not have.
            if os.path.exists(path) and not os.path.exists(self._uris[number]):
                self._uris[number] = path

    def __len__(self) -> int:
        return len(self._sizes)

    @functools.cached_property
    def are_remote(self) -> bool:
        """Whether a file is in an object store."""
        return any(self._storage(number).local_path() is None for number in range(len(self._uris)))

    @property
    def num_bytes(self) -> int:
        return int(self._sizes.sum())

    def keys(self) -> list[str]:
        """Returns the files' names below their URIs; "" for a URI that is a file."""
        return list(self._keys.to_pylist())

    def key(self, number: int) -> str:
        return str(self._keys[number].as_py())

    def size(self, number: int) -> int:
        """Returns the size in bytes."""
        return int(self._sizes[number])

    def _found(self, number: int) -> tuple[int, FoundFile]:
        time_ns = int(self._times_ns[number])
        modified_ns = None if time_ns == _UNKNOWN_NS else time_ns
        return int(self._uri_of[number]), FoundFile(self.key(number), self.size(number), modified_ns)

    def version(self, number: int) -> tuple[int, int | None]:
        """Returns what changes with the content: size, and time of change in nanoseconds since 1970."""
        return self.size(number), self._found(number)[1].modified_ns

    def contents(self) -> list[int]:
        """Returns a number for the name, size and content of each file, below 2**32.

        Of the content it tells the first and last bytes, of a file on a file system: what is in an object
        store is the same for every host. Of many files it tells those of some, from the first to the last.

        Raises DataError where one cannot be read.
        """
        checksums = self._known_checksums()
        told = (
            f"{self._name(number)} {self.size(number)} {checksums.get(number)}" for number in range(len(self))
        )
        return [int(isal_zlib.crc32(one.encode())) for one in told]

    def fingerprint(self, *, has_times: bool = False) -> int:
        """Returns a number for the names and sizes of all files, below 2**32.

        Args:
          has_times: Whether it is another one when a file was written again.
        """
        times = self._times_ns.tolist() if has_times else [""] * len(self)
        files = zip(self.keys(), self._sizes.tolist(), times, strict=True)
        told = "\n".join(f"{key} {size} {time}".rstrip() for key, size, time in files)
        return int(isal_zlib.crc32(told.encode()))

    def identity(self) -> str:
        """Returns a text that is another one where a file has another URI, size, time or `contents`."""
        columns = (self._uri_of.tolist(), self._sizes.tolist(), self._times_ns.tolist())
        told = (self._uris, self.keys(), *columns, self.contents())
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def uri(self, number: int) -> str:
        storage, file = self._found(number)
        return self._storage(storage).uri(file.key)

    def of_each(
        self,
        what: str,
        find: Callable[[int], Result],
        *,
        of: int | None = None,
        num_threads: int | None = None,
        part_files: int = 64,
    ) -> list[Result]:
        """Returns what `find` makes of each file, several at once; of a store's, each found by one task.

        Args:
          what: Alike in all tasks for what is the same.
          of: Of so many files; None for all.
          part_files: So many at least are found by one task.
        """
        num_files = len(self) if of is None else of
        num_threads = num_threads or (MAX_REQUESTS if self.are_remote else _FILE_THREADS)

        def found(numbers: range) -> list[Result]:
            return list(in_order(find, numbers, num_threads=num_threads, name="raydist-files"))

        if not self.are_remote:
            return found(range(num_files))
        told = f"{what} {self._uris} {self.fingerprint()}"
        return divided(told, num_files, found, part_items=part_files)

    def open(self, number: int) -> Any:
        """Opens a file for random access (a `pyarrow.NativeFile`).

        Raises:
          DataError: It is gone, or has changed since it was found.
          StorageError: Storage does not answer.
        """
        storage, file = self._found(number)
        place = self._storage(storage)
        if place.local_path() is not None:
            self.check(number)
        try:
            opened = place.open_input(file.key)
            if place.local_path() is None:
                self._check(number, place.look_at_open(file.key, opened))
            return opened
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._check(number, None)
            _raise_as_data_error(error)

    def reading(self, number: int, read: Callable[[], Result]) -> Result:
        """Returns what `read` returns, which opens a file and reads it; called again while storage is away.

        Raises StorageError where storage stays away; other errors are what `read` raises.
        """
        storage, file = self._found(number)
        return self._storage(storage).reading(file.key, read)

    def content(self, number: int, first: int = 0, end: int | None = None) -> bytes:
        """Returns a file's bytes from `first` to `end`, or fewer where it has no more.

        Raises DataError or StorageError, as `open` does.
        """

        if first == 0 and end is None and (whole := self._whole(number)) is not None:
            return whole

        def read() -> bytes:
            with self.open(number) as file:
                file.seek(first)
                return bytes(file.read() if end is None else file.read(end - first))

        try:
            return self.reading(number, read)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot read the input {self.uri(number)}: {first_line(error)}") from error

    def _whole(self, number: int) -> bytes | None:
        """Returns the content of a file of this host that is as it was found; None where anything is not so.

        Small files cost less than through pyarrow, which then finds out what is wrong.
        """
        storage, found = self._found(number)
        path, file = self._storage(storage).local_path(found.key), self._copies.get(number, found)
        if path is None:
            return None
        try:
            with open(path, "rb", buffering=0) as opened:
                status = os.fstat(opened.fileno())
                if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns):
                    return None
                content = opened.read()
        except OSError:
            return None
        return content if len(content) == file.size_bytes else None

    def check(self, number: int) -> None:
        """Raises DataError where a file is gone, or has changed since it was found."""
        storage, file = self._found(number)
        try:
            now = self._storage(storage).look_at(file.key)
        except StorageError as error:
            _raise_as_data_error(error)
        self._check(number, now)

    def _check(self, number: int, now: FoundFile | None) -> None:
        _, file = self._found(number)
        if now is None:
            raise DataError(
                f"input file {self.uri(number)} is gone since the run began; put it back, and resume"
            )
        if not _is_the_same(self._copies.get(number, file), now) and not self._is_copy(number, now):
            raise DataError(
                f"input file {self.uri(number)} has changed since it was opened: it had {file.size_bytes} "
                f"bytes, and has {now.size_bytes} written later; the order of examples holds only for data "
                "that stay the same"
            )

    def _is_copy(self, number: int, now: FoundFile) -> bool:
        """Whether a file that another process has found is a copy here, which has a time of its own.

        Asked once for each file: from then on the copy has to stay as it is.
        """
        if self._sent is None or now.size_bytes != self.size(number) or self._local_path(number) is None:
            return False
        is_known = number in self._copies or number not in self._sent
        if not is_known and self._checksum(number) != self._sent[number]:
            return False
        return _is_the_same(self._copies.setdefault(number, now), now)

    def _known_checksums(self) -> dict[int, int]:
        if self._checksums is None:
            is_local = [self._storage(uri).local_path() is not None for uri in range(len(self._uris))]
            local = np.flatnonzero(np.array(is_local)[self._uri_of]).tolist()
            chosen = local[:: -(-len(local) // _MOST_CHECKSUMS)] if local else []
            with ThreadPoolExecutor(_FILE_THREADS, "raydist-checksums") as pool:
                self._checksums = dict(zip(chosen, pool.map(self._checksum, chosen), strict=True))
        return self._checksums

    def _checksum(self, number: int) -> int:
        path = self._local_path(number)
        assert path is not None
        try:
            with path.open("rb") as file:
                crc32 = isal_zlib.crc32(file.read(_END_BYTES))
                file.seek(max(0, self.size(number) - _END_BYTES))
                return int(isal_zlib.crc32(file.read(_END_BYTES), crc32))
        except OSError as error:
            raise DataError(f"cannot read the input {path}: {error.strerror}") from error

    def _name(self, number: int) -> str:
        """Returns a name that does not depend on where a host has the file."""
        return self.key(number) or self.uri(number).rpartition("/")[2]

    def _local_path(self, number: int) -> Path | None:
        storage, file = self._found(number)
        return self._storage(storage).local_path(file.key)

    def _storage(self, number: int) -> Storage:
        if number not in self._storages:
            self._storages[number] = Storage.open(self._uris[number], follows_links=True).parallel()
        return self._storages[number]


def first_line(error: BaseException) -> str:
    """Returns what pyarrow says, without the places in its source."""
    return str(error).strip().partition("\n")[0]


def _as_texts(uris: Any, what: str) -> list[str]:
    is_several = isinstance(uris, Iterable) and not isinstance(uris, str | bytes | os.PathLike)
    texts = []
    for uri in uris if is_several else [uris]:
        text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else None
        if not isinstance(text, str):
            raise DataError(f"{what} got {uri!r} as a URI; give text or a pathlib.Path, or a list of these")
        texts.append(text)
    return texts


def _place_of(uri: str) -> str:
    """Returns where a URI that has no files leads, and what to do about it."""
    remedy = "give a file, or a folder that holds some"
    path = Storage.open(uri).local_path()
    if path is None:
        return f"{redact(uri)}; {remedy}"
    if os.path.isabs(uri) and not _within_folder(uri):
        missing = "" if path.exists() else ", which does not exist on this host"
        return f"{uri}{missing}; {remedy}"
    missing = "" if path.exists() else ", which does not exist"
    return (
        f"{uri}{missing} in the current folder: in a run that is the task's own copy of the job's folder, "
        f"without what .raydistignore names; {remedy}, or the full path of data that lie elsewhere"
    )


def _within_folder(path: str) -> str | None:
    """Returns an absolute path relative to the current folder, which is a task's copy of the job's folder.

    None where it does not lead there.
    """
    folder = os.getcwd()
    is_within = os.path.isabs(path) and os.path.commonpath([folder, path]) == folder
    return os.path.relpath(path, folder) if is_within else None


def _listed(uri: str, what: str, is_wanted: Callable[[str], bool]) -> _Listing:
    """Returns the files of a URI; of a store, what one of the tasks of a run found there."""

    def find(_: range) -> list[_Listing]:
        try:
            found = Storage.open(uri, follows_links=True).find_files()
        except StorageError as error:
            _raise_as_data_error(error, what)
        wanted = [file for file in found if not file.key or is_wanted(file.key)]
        if not wanted:
            raise DataError(f"{what} found no files at {_place_of(uri)}")
        return [_Listing.of(wanted)]

    # Each host may have files of its own.
    is_local = Storage.open(uri).local_path() is not None
    [listing] = find(range(1)) if is_local else divided(f"{what} {uri}", 1, find)
    return listing


def _is_the_same(before: FoundFile, now: FoundFile) -> bool:
    if before.size_bytes != now.size_bytes:
        return False
    if before.modified_ns is None or now.modified_ns is None:
        return True
    if before.modified_ns % _SECOND_NS and now.modified_ns % _SECOND_NS:
        return before.modified_ns == now.modified_ns
    # S3 has milliseconds in a list (MinIO fills them in), and none in what it says of one object.
    return before.modified_ns // _SECOND_NS == now.modified_ns // _SECOND_NS


def _raise_as_data_error(error: StorageError, what: str = "the input") -> NoReturn:
    """Raises what storage says of one file as a DataError, unless it may pass by itself."""
    if error.__cause__ is not None and is_transient(error.__cause__):
        raise error
    raise DataError(f"{what} {error}") from error
