"""CheckpointStore: commits a run's checkpoints, and hands back only what is committed and whole.

EvaluationStore keeps what the evaluator found for the checkpoints that --keep-best chooses from.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from isal import isal_zlib

from raydist.errors import CheckpointError, StorageError
from raydist.storage.checkpoint_marker import (
    Checkpoint,
    StoredFile,
    decode_marker,
    describe_file,
    encode_marker,
)
from raydist.storage.failures import is_full_disk, storage_errors
from raydist.storage.filesystem import Storage
from raydist.storage.limits import parse_json, safe_name
from raydist.storage.local_files import write_chunks
from raydist.storage.run_storage import RunStorage

logger = logging.getLogger(__name__)

# Values by the name of a checkpoint's folder; none for one that could not be read.
Evaluations = Mapping[str, Mapping[str, float]]


class EvaluationStore:
    """The evaluator's values of a run's checkpoints, in one file. Only the evaluator writes it."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def read(self) -> Evaluations:
        """Returns all values; none where the file is damaged, because a checkpoint can be evaluated again."""
        try:
            content = self._storage.read_bytes(self._storage.evaluations)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return {}
        try:
            found: dict[str, dict[str, float]] = parse_json(content)
            return {name: dict(values) for name, values in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s is damaged: %s", self._storage.uri(self._storage.evaluations), error)
            return {}

    def add(self, name: str, values: Mapping[str, float], *, present: Collection[str]) -> None:
        """Adds the values of the checkpoint `name`, and forgets those of checkpoints not in `present`."""
        known = {one: found for one, found in self.read().items() if one in present}
        self._storage.write_bytes(
            self._storage.evaluations, json.dumps({**known, name: dict(values)}, indent=1).encode()
        )


_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class DamagedCheckpoint:
    """A checkpoint that was skipped, and why: `reason` is a sentence that names it and the file."""

    step: int
    attempt: int
    uri: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RestorePoint:
    """Where a run can continue.

    Attributes:
      checkpoint: The newest whole one; None where there is none.
      damaged: The newer ones that were skipped, newest first.
    """

    checkpoint: Checkpoint | None
    damaged: tuple[DamagedCheckpoint, ...] = ()


class CheckpointStore:
    """The checkpoints of one run. Only the chief commits and prunes; every task may read."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def commit(
        self,
        *,
        step: int,
        attempt: int,
        files: Mapping[str, bytes | Path],
        info: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Stores `files` under their names, then the marker; without the marker no reader sees them.

        A step that this attempt has committed already is left as it is, so that a save at an
        epoch's end may fall on the step of another save.

        Args:
          files: Content by name; a Path is a local file, which must not change until the return.
          info: JSON; values NaN and infinity are kept.

        Raises:
          StorageError: It cannot be stored, as on a full disk; what was stored of it is removed again.
        """
        committed = self._load_unless_damaged(step, attempt)
        if committed is not None:
            return committed
        self._remove(self._storage, step, attempt)
        folder = self._storage.checkpoint(step=step, attempt=attempt)
        self._check_fits(folder, files)
        try:
            stored = [self._store_file(step, attempt, name, source) for name, source in sorted(files.items())]
            marker = encode_marker(step=step, attempt=attempt, files=stored, info=info or {})
            self._storage.write_bytes(
                self._storage.checkpoint_marker(step=step, attempt=attempt), marker, is_durable=True
            )
        except StorageError as error:
            full = self._describe_full_disk(error, folder, files)  # before there is room again
            with contextlib.suppress(StorageError):
                self._remove(self._storage.hasty(), step, attempt)
            if full is None:
                raise
            raise StorageError(full) from error
        return self._load(step, attempt)

    def _check_fits(self, folder: str, files: Mapping[str, bytes | Path]) -> None:
        """Raises StorageError where it cannot fit, before it has filled a disk that others use too."""
        try:
            free_bytes = self._storage.free_bytes(folder)
            fits = free_bytes is None or free_bytes >= sum(map(_size, files.values()))
        except (StorageError, OSError):  # writing raises it, if it is not over by then
            return
        if not fits:
            raise StorageError(self._full_disk_sentence(folder, files, free_bytes or 0))

    def _describe_full_disk(
        self, error: StorageError, folder: str, files: Mapping[str, bytes | Path]
    ) -> str | None:
        """Returns the message about a checkpoint that does not fit; None where that is not the cause."""
        if not is_full_disk(error.__cause__):
            return None
        free_bytes = (self._storage.free_bytes(folder) or 0) + self._stored_bytes(folder)
        return self._full_disk_sentence(folder, files, free_bytes)

    def _full_disk_sentence(self, folder: str, files: Mapping[str, bytes | Path], free_bytes: int) -> str:
        needed_bytes = sum(map(_size, files.values()))
        return (
            f"no space left for the checkpoint {self._storage.uri(folder)}: it takes "
            f"{needed_bytes / 1e6:.1f} MB, and {free_bytes / 1e6:.1f} MB are free; free some space there, "
            "lower --keep, or choose another --storage, and continue with --resume from the checkpoint before"
        )

    def _stored_bytes(self, folder: str) -> int:
        with contextlib.suppress(StorageError):
            return sum(self._storage.size(f"{folder}/{name}") for name in self._storage.list_names(folder))
        return 0

    def committed(self) -> list[Checkpoint]:
        """Returns the committed checkpoints, the highest step first, then the highest attempt.

        Reads markers only: one whose marker is damaged is left out, one whose files are damaged is not.
        """
        found = (self._load_unless_damaged(step, attempt) for step, attempt in self._marked())
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def newest(self) -> Checkpoint | None:
        """Returns the newest committed checkpoint, None without one; reads its marker, and none of its files.

        Newest as in `latest_whole`. One whose marker is damaged is left out.
        """
        by_age = sorted(self._folders(), key=_age)
        found = (self._load_unless_damaged(step, attempt) for step, attempt in by_age)
        return next((checkpoint for checkpoint in found if checkpoint is not None), None)

    def find(self, *, step: int, attempt: int) -> Checkpoint:
        """Returns a committed checkpoint; raises CheckpointError if it is not there."""
        return self._load(step, attempt)

    def read(self, checkpoint: Checkpoint) -> dict[str, bytes]:
        """Returns every file's content by name; raises CheckpointError, naming the file, on any damage."""
        return {file.name: b"".join(self._checked_chunks(checkpoint, file)) for file in checkpoint.files}

    def fetch(self, checkpoint: Checkpoint, directory: Path) -> None:
        """Copies every file into `directory`; raises CheckpointError, naming the file, on any damage.

        A failed fetch leaves none of the files behind.
        """
        try:
            for file in checkpoint.files:
                with storage_errors("write", str(directory / file.name)):
                    write_chunks(directory / file.name, self._checked_chunks(checkpoint, file))
        except BaseException:
            for file in checkpoint.files:
                with contextlib.suppress(OSError):
                    (directory / file.name).unlink()
            raise

    def verify(self, checkpoint: Checkpoint) -> None:
        """Reads every file; raises CheckpointError, naming the file, on any damage."""
        for file in checkpoint.files:
            for _ in self._checked_chunks(checkpoint, file):
                pass

    def latest_whole(self, *, fetch_to: Path | None = None) -> RestorePoint:
        """Returns the newest checkpoint without damage, and the damaged ones that are newer.

        Newest means the highest attempt, then the highest step: what a chief that was cut off commits after
        the next attempt has is a branch that no attempt continues. A storage that cannot be read is a
        StorageError, not damage.

        Args:
          fetch_to: Local folder that gets the files, checked while they are copied; None only checks.
        """
        check: Callable[[Checkpoint], None] = (
            self.verify if fetch_to is None else functools.partial(self.fetch, directory=fetch_to)
        )
        damaged = []
        for step, attempt in self._marked_by_age():
            try:
                checkpoint = self._load(step, attempt)
                check(checkpoint)
            except CheckpointError as error:
                logger.warning("skipped a damaged checkpoint: %s", error)
                uri = self._storage.uri(self._storage.checkpoint(step=step, attempt=attempt))
                damaged.append(DamagedCheckpoint(step=step, attempt=attempt, uri=uri, reason=str(error)))
            else:
                return RestorePoint(checkpoint=checkpoint, damaged=tuple(damaged))
        return RestorePoint(checkpoint=None, damaged=tuple(damaged))

    def prune(self, *, keep: int | None, keep_steps: Collection[int] = ()) -> None:
        """Removes all but the newest `keep` checkpoints and those of `keep_steps`; None keeps every one.

        Newest as in `latest_whole`: after a damaged step 30 of attempt 0 was skipped for step 20,
        attempt 1's step 25 is the newer one. Of earlier attempts also what was never committed is removed.
        """
        by_age = self._marked_by_age()
        if not by_age:
            return
        expendable = by_age[max(keep, 1) :] if keep is not None else []
        for step, attempt in expendable:
            if step not in keep_steps:
                self._remove(self._storage, step, attempt)
        newest_attempt = by_age[0][1]
        for step, attempt in set(self._folders()) - set(by_age):
            if attempt < newest_attempt:
                self._remove(self._storage, step, attempt)

    def _folders(self) -> list[tuple[int, int]]:
        """Returns (step, attempt) of each checkpoint folder, committed or not, newest first."""
        names = map(self._storage.parse_checkpoint, self._storage.list_names(self._storage.checkpoints))
        return sorted((name for name in names if name is not None), reverse=True)

    def _marked_by_age(self) -> list[tuple[int, int]]:
        return sorted(self._marked(), key=_age)

    def _marked(self) -> list[tuple[int, int]]:
        return [
            (step, attempt)
            for step, attempt in self._folders()
            if self._storage.exists(self._storage.checkpoint_marker(step=step, attempt=attempt))
        ]

    def _load(self, step: int, attempt: int) -> Checkpoint:
        key = self._storage.checkpoint_marker(step=step, attempt=attempt)
        uri = self._storage.uri(self._storage.checkpoint(step=step, attempt=attempt))
        with _missing_is_damage(uri, PurePosixPath(key).name):
            content = self._storage.read_bytes(key)
        try:
            return decode_marker(content, step=step, attempt=attempt, uri=uri)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            name = PurePosixPath(key).name
            raise CheckpointError(f"checkpoint {uri} is damaged: its marker {name} is not whole") from error

    def _load_unless_damaged(self, step: int, attempt: int) -> Checkpoint | None:
        if not self._storage.exists(self._storage.checkpoint_marker(step=step, attempt=attempt)):
            return None
        try:
            return self._load(step, attempt)
        except CheckpointError as error:
            logger.warning("%s", error)
            return None

    def _store_file(self, step: int, attempt: int, name: str, source: bytes | Path) -> StoredFile:
        key = self._file_key(step, attempt, safe_name(name))
        if isinstance(source, Path):
            file = describe_file(name, _local_chunks(source))
            self._storage.upload(source, key, is_durable=True)
        else:
            file = describe_file(name, iter([source]))
            self._storage.write_bytes(key, source, is_durable=True)
        return file

    def _checked_chunks(self, checkpoint: Checkpoint, file: StoredFile) -> Iterator[bytes]:
        key = self._file_key(checkpoint.step, checkpoint.attempt, file.name)
        size_bytes = crc32 = 0
        with _missing_is_damage(checkpoint.uri, file.name):
            for chunk in self._storage.read_chunks(key):
                size_bytes, crc32 = size_bytes + len(chunk), isal_zlib.crc32(chunk, crc32)
                if size_bytes > file.size_bytes:  # of which there may be no end
                    break
                yield chunk
        if size_bytes != file.size_bytes:
            raise CheckpointError(
                f"checkpoint {checkpoint.uri} is damaged: {file.name} has {size_bytes} bytes "
                f"instead of {file.size_bytes}"
            )
        if crc32 != file.crc32:
            raise CheckpointError(f"checkpoint {checkpoint.uri} is damaged: {file.name} has a wrong checksum")

    def _remove(self, storage: Storage, step: int, attempt: int) -> None:
        # The marker first: a removal that is cut off must not leave a checkpoint that looks whole.
        storage.delete(self._storage.checkpoint_marker(step=step, attempt=attempt))
        storage.delete(self._storage.checkpoint(step=step, attempt=attempt))

    def _file_key(self, step: int, attempt: int, name: str) -> str:
        return f"{self._storage.checkpoint(step=step, attempt=attempt)}/{name}"


def _age(name: tuple[int, int]) -> tuple[int, int]:
    """Sorts (step, attempt) by age, the newest first: by the attempt, then by the step."""
    step, attempt = name
    return -attempt, -step


def _size(source: bytes | Path) -> int:
    return source.stat().st_size if isinstance(source, Path) else len(source)


@contextlib.contextmanager
def _missing_is_damage(checkpoint_uri: str, name: str) -> Iterator[None]:
    """Raises CheckpointError where the file is not there; a store that fails in another way is not damage."""
    try:
        yield
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise CheckpointError(f"checkpoint {checkpoint_uri} is damaged: {name} is missing") from error


def _local_chunks(path: Path) -> Iterator[bytes]:
    with storage_errors("read", str(path)), path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
