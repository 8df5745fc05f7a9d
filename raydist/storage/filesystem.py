"""Storage: a folder on a local disk or in an object store, behind one set of verbs."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import io
import os
import re
import shutil
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from raydist.errors import StorageError
from raydist.spec.secrecy import redact
from raydist.storage import failures, limits
from raydist.storage.local_files import (
    append_whole,
    create_whole,
    files_below,
    write_all,
    write_aside,
    write_chunks,
)
from raydist.storage.s3 import HASTY, PATIENT, RequestLimits, allow_requests, with_limits

if TYPE_CHECKING:
    from typing_extensions import Self

_CHUNK_BYTES = 8 * 1024 * 1024
_MISTYPED_PATTERN = re.compile(r"(file|s3|gs|hdfs):(?!//)/*(.*)")
_SCHEME_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_TEMPORARY_PATTERN = re.compile(r"\..*\.tmp")
_HIDDEN_PATTERN = re.compile(r"(?:^|/)[._]")
# Google's client tries by itself, for a quarter of an hour unless told otherwise.
_DEFAULT_QUERIES = {
    # Lets S3 write a small object with one request instead of the three of a multipart upload.
    "s3": "allow_delayed_open=true",
    "gs": "retry_limit_seconds=5",
}
# Older pyarrows refuse the parameter; with them each small object takes three requests.
_DELAYED_OPEN_SINCE = 21

Result = TypeVar("Result")


class FoundFile(NamedTuple):
    """A file on storage; `modified_ns` is its time of change, nanoseconds since 1970, None where unknown."""

    key: str
    size_bytes: int
    modified_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Root:
    """A storage's folder: its URI, and the paths of keys, of which none leads out of it.

    Attributes:
      folder: Its path, without a `/` at the end; "" for the root of a file system.
      uri_prefix: What the URIs of keys begin with, without credentials; `query` is what they end with.
      follows_links: Whether symbolic links may lead out of it, as in `Storage.open`.
    """

    folder: str
    uri_prefix: str
    query: str = ""
    is_local: bool
    follows_links: bool = False

    @classmethod
    def of(cls, folder: str, *, uri: str, query: str = "", is_local: bool) -> Root:
        return cls(folder=folder.rstrip("/"), uri_prefix=uri.rstrip("/"), query=query, is_local=is_local)

    def uri(self, key: str = "") -> str:
        """Returns the URI of `key`, without credentials; a path stays a path."""
        joined = f"{self.uri_prefix}/{key}" if key else self.uri_prefix
        return (joined or "/") + self.query

    def path(self, key: str) -> str:
        """Returns where a key is; raises StorageError if that is not in the folder."""
        path = self.joined(key)
        if not self.is_inside(path):
            raise StorageError(
                f"cannot use {self.uri(key)}: a symbolic link there leads out of {self.uri()}; put the files "
                "themselves there, mount their disk there, or remove the link"
            )
        return path

    def joined(self, key: str) -> str:
        """Returns where a key is, which a link may have led out of the folder."""
        if ".." in key.split("/"):
            raise StorageError(f"cannot use {key!r}: the name leads out of {self.uri()}")
        return f"{self.folder}/{key}" if key else self.folder or "/"

    def is_link_out(self, path: str) -> bool:
        """Whether an entry of a folder is a link that leads out of the storage; quick for other entries."""
        may_lead_out = self.is_local and not self.follows_links
        return may_lead_out and os.path.islink(path) and not self.is_inside(path)

    def is_inside(self, path: str) -> bool:
        """Whether no link on a path leads out of the folder; what is not there yet leads nowhere."""
        if self.follows_links or not self.is_local:
            return True
        # Asked each time: the folder itself may be a link, and be replaced.
        root = os.path.realpath(self.folder or "/")
        return os.path.commonpath([root, os.path.realpath(path)]) == root


class Storage:
    """A root folder and what it holds, named by keys relative to it with `/` between parts.

    Every method raises StorageError, naming the URI, where storage cannot do what is asked; what may pass
    by itself, such as a store that answers 503, is tried again for a while before. Safe to use from
    several threads. Credentials of the URI show up in no message and in no `uri()`,
    so another process opens the same storage by the URI that the user gave, not by `uri()`.
    """

    def __init__(
        self, *, filesystem: pafs.FileSystem, root: Root, retry: failures.Retry | None = None
    ) -> None:
        """Takes an open filesystem; with None for `retry` its patience is short."""
        self._filesystem = filesystem
        self._root = root
        self._retry = retry or failures.Retry(patience_s=failures.SHORT_PATIENCE_S)

    @staticmethod
    def open(uri: str, *, follows_links: bool = False) -> Storage:
        """Opens a path, `file://`, `s3://`, `gs://` or `hdfs://`; writes nothing and asks no server.

        A plain path is taken relative to the current folder and made absolute. S3 takes
        `region`, `scheme` and `endpoint_override` in the URI's query, and AWS's own environment
        variables (AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, credentials). Only AWS itself is asked here, for
        the region of a bucket, where neither `region` nor an endpoint is given.

        Args:
          follows_links: Whether a symbolic link below the folder may lead out of it, as in data that a user
            has put together. Where runs are kept, somebody else may have put it there.
        """
        match = _SCHEME_PATTERN.match(uri)
        if match is not None and match[1] != "file":
            return _opened_remote(uri, scheme=match[1])
        root = _root_of_path(uri) if match is None else _root_of_file_uri(uri)
        root = dataclasses.replace(root, follows_links=follows_links)
        return Storage(filesystem=pafs.LocalFileSystem(), root=root)

    def patient(self) -> Self:
        """Returns the same storage for what a run cannot do without: continues for `PATIENCE_S`."""
        return self._with(PATIENT, failures.PATIENCE_S)

    def parallel(self) -> Self:
        """Returns the same patient storage for what reads many files at once."""
        if not self._root.is_local:
            allow_requests()
        return self.patient()

    def hasty(self) -> Self:
        """Returns the same storage for what is done again in a moment anyway: each call is tried once."""
        return self._with(HASTY, 0.0)

    def _with(self, limits: RequestLimits, patience_s: float) -> Self:
        changed = copy.copy(self)
        changed._filesystem = with_limits(self._filesystem, limits)
        changed._retry = dataclasses.replace(self._retry, patience_s=patience_s)
        return changed

    @property
    def arguments(self) -> dict[str, Any]:
        """What `__init__` makes the same storage of."""
        return {"filesystem": self._filesystem, "root": self._root, "retry": self._retry}

    def __repr__(self) -> str:
        return f"Storage({self.uri()!r})"

    def uri(self, key: str = "") -> str:
        """Returns the URI of `key`, without credentials; a path stays a path."""
        return self._root.uri(key)

    def local_path(self, key: str = "") -> Path | None:
        """Returns where `key` is on a file system of this host; None in an object store."""
        return Path(self._path(key)) if self._root.is_local else None

    def free_bytes(self, key: str = "") -> int | None:
        """Returns what fits in yet at a key; None where nothing limits it that could be asked for."""
        if not self._root.is_local:
            return None
        with failures.storage_errors("look at", self.uri(key)):
            place = Path(self._path(key))
            usage = shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists()))
            return usage.free if usage.total else None  # ramfs, and what does not tell, have no total

    def exists(self, key: str) -> bool:
        return self._info(key).type is not pafs.FileType.NotFound

    def size(self, key: str) -> int:
        """Returns the size in bytes; a missing file is an error."""
        info = self._info(key)
        if info.type is not pafs.FileType.File:
            raise StorageError(f"cannot read {self.uri(key)}: it is not a file")
        return int(info.size)

    def list_names(self, key: str) -> list[str]:
        """Returns the names of files and folders right below `key`, sorted; none where it is missing.

        Links that lead out of the storage are left out, as in `list_files`. A missing bucket is an error.
        """
        selector = pafs.FileSelector(self._path(key), allow_not_found=True)
        infos = self._try("list", key, lambda: self._look(selector))
        if not infos and not key:
            self._check_bucket()
        names = [info.base_name for info in infos if not self._root.is_link_out(info.path)]
        # Of an object store, whose keys may be any text.
        names = [name for name in names if name not in ("", ".", "..")]
        return sorted(name for name in names if not _TEMPORARY_PATTERN.fullmatch(name))

    def find_files(self) -> list[FoundFile]:
        """Returns all files below the root, sorted by key; the root itself, with the key "", if it is one.

        Hidden ones, whose name or folder begins with `.` or `_`, are left out, as Spark's and Arrow's
        datasets do.
        """
        info = self._info("")
        if info.type is pafs.FileType.File:
            return [FoundFile("", info.size, info.mtime_ns)]
        return [file for file in self.list_files("") if not _HIDDEN_PATTERN.search(file.key)]

    def list_files(self, key: str) -> list[FoundFile]:
        """Returns all files below `key`, hidden ones too, sorted by key; none where it is missing."""
        path, root = self._path(key), self._path("").rstrip("/") + "/"
        # Pyarrow enters each folder that a link leads to, such as `/`.
        if self._root.is_local and not self._root.follows_links:
            found = self._try("list", key, lambda: list(files_below(path, is_inside=self._root.is_inside)))
        else:
            selector = pafs.FileSelector(path, recursive=True, allow_not_found=True)
            infos = self._try("list", key, lambda: self._look(selector))
            found = [(one.path, one.size, one.mtime_ns) for one in infos if one.type is pafs.FileType.File]
        return sorted(FoundFile(path.removeprefix(root), *facts) for path, *facts in found)

    def look_at(self, key: str) -> FoundFile | None:
        """Returns what a file is now; None where there is none."""
        info = self._info(key)
        return FoundFile(key, info.size, info.mtime_ns) if info.type is pafs.FileType.File else None

    def read_bytes(self, key: str) -> bytes:
        """Returns the content; raises StorageError for a file larger than `limits.max_bytes`."""
        parts, num_bytes, most = [], 0, limits.max_bytes(key)
        for part in self.read_chunks(key):
            parts.append(part)
            num_bytes += len(part)
            if num_bytes > most:
                raise StorageError(
                    f"cannot read {self.uri(key)}: it has more than {most >> 20} MB, and raydist writes no "
                    "such file; put back a copy of it, or remove it"
                )
        return b"".join(parts)

    def read_text(self, key: str) -> str:
        return self.read_bytes(key).decode("utf-8", errors="replace")

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """Yields the file's bytes in order, some MB at a time."""
        offset, stream = 0, self.open_input(key)
        try:
            while chunk := self._try("read", key, functools.partial(_read_at, stream, offset)):
                yield chunk
                offset += len(chunk)
        finally:
            stream.close()

    def open_input(self, key: str) -> Any:
        """Opens `key` for random access (a `pyarrow.NativeFile`, whose own errors stay pyarrow's)."""
        return self._try("read", key, lambda: self._open(key))

    def look_at_open(self, key: str, stream: Any) -> FoundFile | None:
        """Returns what a file was when `open_input` opened it; S3 is not asked for that again."""
        modified = None if self._root.is_local else stream.metadata().get("Last-Modified")
        if modified is None:
            return self.look_at(key)
        at_s = datetime.datetime.fromisoformat(modified.decode().replace("Z", "+00:00")).timestamp()
        return FoundFile(key, stream.size(), int(at_s) * 10**9)

    def reading(self, key: str, read: Callable[[], Result]) -> Result:
        """Returns what `read` returns, which reads `key` by itself and is called again where that may help.

        StorageError is what might have passed by itself and did not; other errors stay pyarrow's.
        """
        try:
            return self._retry.call(read)
        except (OSError, pa.ArrowException) as error:
            if failures.is_transient(error):
                raise failures.storage_error("read", self.uri(key), error) from error
            raise

    def write_bytes(self, key: str, data: bytes, *, is_durable: bool = False) -> None:
        """Creates or replaces a file, whole or not at all; folders are made as needed.

        Args:
          is_durable: Whether the file has to outlive a loss of power, which costs an fsync on a
            local disk. Being whole does not depend on it.
        """
        self._try("write", key, lambda: self._write(key, data, is_durable=is_durable))

    def append(self, key: str, data: bytes) -> bool:
        """Adds to the end of a file, whole or not at all; returns False in an object store, which cannot."""
        if self._root.is_local:
            self._try("write", key, lambda: append_whole(Path(self._path(key)), data))
        return self._root.is_local

    def write_text(self, key: str, text: str, *, is_durable: bool = False) -> None:
        self.write_bytes(key, text.encode(), is_durable=is_durable)

    def create(self, key: str, data: bytes) -> bool | None:
        """Creates a file, whole, unless there is one; returns whether it did.

        Returns None, and does nothing, where that cannot be done in one operation: on a file system without
        hard links, and on all else than a file system, as pyarrow (26) offers neither S3's conditional put
        nor what GCS and HDFS have for it. `exclusive.create_once` works everywhere.
        """
        if not self._root.is_local:
            return None
        return self._try("write", key, lambda: create_whole(Path(self._path(key)), data))

    def upload(self, local_path: Path, key: str, *, is_durable: bool = False) -> None:
        """Copies a local file to `key`, like `write_bytes` but without holding it in memory."""
        with failures.storage_errors("read", str(local_path)), local_path.open("rb") as source:
            self._try("upload to", key, lambda: self._upload(source, key, is_durable=is_durable))

    def download(self, key: str, local_path: Path) -> None:
        """Copies `key` to a local file, making its folder."""
        with failures.storage_errors("write", str(local_path)):
            write_chunks(local_path, self.read_chunks(key))

    def delete(self, key: str) -> None:
        """Deletes a file or a folder with all it holds; what is missing already is fine."""
        self._try("delete", key, lambda: self._delete(key))

    def remove_empty_folder(self, key: str) -> None:
        """Removes a folder of a file system if it is empty; elsewhere a folder is nothing by itself."""
        if self._root.is_local:
            with suppress(OSError):  # what it holds, or that it is gone, is fine
                os.rmdir(self._path(key))

    def check_writable(self) -> None:
        """Proves by a probe file that this host can write here, making the root folder where needed."""
        probe = f".raydist-probe-{uuid.uuid4().hex}.tmp"
        self._try("write in", "", lambda: self._write(probe, b"raydist", is_durable=True))
        self.delete(probe)

    def _info(self, key: str) -> Any:
        return self._try("read", key, lambda: self._filesystem.get_file_info(self._path(key)))

    def _open(self, key: str) -> Any:
        open_file = self._filesystem.open_input_file
        if not self._root.is_local or self._root.follows_links:
            return open_file(self._path(key))
        return limits.open_regular(self._path(key), is_inside=self._root.is_inside, open_file=open_file)

    def _check_bucket(self) -> None:
        bucket = "" if self._root.is_local else self._root.folder.partition("/")[0]
        with suppress(OSError, pa.ArrowException):  # who may read a bucket may not be allowed to look at it
            if bucket and self._filesystem.get_file_info(bucket).type is pafs.FileType.NotFound:
                raise StorageError(
                    f"cannot list {self.uri()}: there is no bucket {bucket}; check its name, or create it"
                )

    def _look(self, selector: Any) -> Any:
        try:
            return self._filesystem.get_file_info(selector)
        except FileNotFoundError:
            # Pyarrow found no folder, and then looked why, when another process had made it.
            return self._filesystem.get_file_info(selector)

    def _delete(self, key: str) -> None:
        path = self._root.joined(key)
        if self._root.is_local and os.path.islink(path) and self._root.is_inside(os.path.dirname(path)):
            os.unlink(path)  # the link, and not what it leads to
            return
        kind = self._filesystem.get_file_info(self._path(key)).type
        with suppress(FileNotFoundError):
            if kind is pafs.FileType.Directory:
                self._filesystem.delete_dir(self._path(key))
            elif kind is not pafs.FileType.NotFound:
                self._filesystem.delete_file(self._path(key))

    def _write(self, key: str, data: bytes, *, is_durable: bool) -> None:
        if self._root.is_local:  # at once: a copy of a checkpoint costs the training as much as its writing
            path = Path(self._path(key))
            write = functools.partial(write_all, data=data, is_durable=is_durable)
            write_aside(path, write, is_durable=is_durable)
        else:
            self._upload(io.BytesIO(data), key, is_durable=is_durable)

    def _upload(self, source: BinaryIO, key: str, *, is_durable: bool) -> None:
        source.seek(0)  # where an earlier try has ended
        if not self._root.is_local:
            return self._put_file(source, self._path(key))

        def copy(target: BinaryIO) -> None:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)

        write_aside(Path(self._path(key)), copy, is_durable=is_durable)

    def _put_file(self, source: BinaryIO, path: str) -> None:
        # HDFS has a file from its opening on, and an object store an object from its closing on. To replace
        # one of HDFS, Arrow deletes it, then renames the other: for a moment there is none.
        is_aside = self.uri().startswith(("hdfs:", "viewfs:"))
        folder, _, name = path.rpartition("/")
        written = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp" if is_aside else path
        # Without compression=None pyarrow would pack a file by its name's ending.
        stream = self._filesystem.open_output_stream(written, compression=None)
        try:
            shutil.copyfileobj(source, stream, _CHUNK_BYTES)
        except BaseException:
            # Closing makes an object of what got through, and pyarrow offers no abort.
            with suppress(OSError, pa.ArrowException):
                stream.close()
                self._filesystem.delete_file(written)
            raise
        try:
            stream.close()
            if is_aside:
                self._filesystem.move(written, path)
        except BaseException:
            if is_aside:  # an object store has the old object still
                with suppress(OSError, pa.ArrowException):
                    self._filesystem.delete_file(written)
            raise

    def _path(self, key: str) -> str:
        return self._root.path(key)

    def _try(self, doing: str, key: str, do: Callable[[], Result]) -> Result:
        """Calls `do`, again where it failed for a moment; what is left is a StorageError."""
        with failures.storage_errors(doing, self.uri(key)):
            return self._retry.call(do)


def _root_of_path(path: str) -> Root:
    if not path or "\0" in path:
        raise StorageError(f"storage is {path!r}; write a path, or a URI such as s3://bucket/runs")
    if (mistyped := _MISTYPED_PATTERN.fullmatch(path)) is not None:
        scheme, rest = mistyped.groups()
        uri = f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"
        raise StorageError(f"storage is {path!r}; write {uri}, or ./{path} for a folder")
    folder = os.path.abspath(os.path.expanduser(path))
    return Root.of(folder, uri=folder, is_local=True)


def _root_of_file_uri(uri: str) -> Root:
    host, slash, path = uri.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise StorageError(f"storage is {redact(uri)!r}; write file:/// and an absolute path")
    folder = os.path.abspath("/" + urllib.parse.unquote(path))
    return Root.of(folder, uri=f"file://{urllib.parse.quote(folder)}", is_local=True)


def _opened_remote(uri: str, *, scheme: str) -> Storage:
    address, mark, query = uri.partition("?")
    address = urllib.parse.quote(address, safe=":/@%!$&'()*+,;=[]~")  # a space would be no URI
    try:
        filesystem, folder = pafs.FileSystem.from_uri(
            f"{address}?{_with_defaults(scheme, query)}".rstrip("?")
        )
    except (OSError, pa.ArrowException) as error:
        # Unchained: pyarrow's own text quotes the URI with its credentials.
        raise failures.storage_error("open", redact(uri), error) from None
    if not folder.strip("/") and scheme != "hdfs":
        raise StorageError(f"storage is {redact(uri)!r}; name a bucket, as in {scheme}://bucket/runs")
    root = Root.of(folder, uri=redact(address), query=redact(mark + query), is_local=False)
    return Storage(filesystem=with_limits(filesystem, HASTY), root=root)


def uri_below(uri: str, key: str) -> str:
    """Returns what opens the folder `key` of the storage that `uri` opens, with its credentials and query."""
    match = _SCHEME_PATTERN.match(uri)
    has_query = match is not None and match[1] != "file"
    address, mark, query = uri.partition("?") if has_query else (uri, "", "")
    return f"{address.rstrip('/')}/{key}{mark}{query}"


def _with_defaults(scheme: str, query: str) -> str:
    default = _DEFAULT_QUERIES.get(scheme)
    if scheme == "s3" and int(pa.__version__.partition(".")[0]) < _DELAYED_OPEN_SINCE:
        return query
    if default is None or default.partition("=")[0] in query:
        return query
    return f"{query}&{default}" if query else default


def _read_at(stream: Any, offset: int) -> bytes:
    stream.seek(offset)  # where a try that failed has left it is not known
    return bytes(stream.read(_CHUNK_BYTES))
