"""The runs on a storage: the newest records first, what each run takes up, and how runs are removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raydist.errors import MistakeError, StorageError
from raydist.outcome.result import RunError
from raydist.storage.claims import ClaimStore
from raydist.storage.filesystem import Storage
from raydist.storage.layout import INDEX
from raydist.storage.run_names import names_by_age, no_such_run, read_contents
from raydist.storage.run_record import RunRecord, settled_record
from raydist.storage.run_storage import RunStorage

# Records that are read at once while those that match are looked for.
_MIN_BLOCK = 100


@dataclass(frozen=True, kw_only=True)
class DamagedRecord:
    """A run.json that cannot be read, and why."""

    run: str
    storage: str
    error: RunError
    created_at_s: None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Runs of a storage.

    Attributes:
      runs: The newest first; then those that are damaged.
      num_known: How many runs the storage has.
      is_complete: Whether all that match are in `runs`.
    """

    runs: tuple[RunRecord | DamagedRecord, ...]
    num_known: int
    is_complete: bool


def list_runs(
    storage: Storage, *, limit: int | None = None, matches: Callable[[RunRecord], bool] | None = None
) -> Listing:
    """Returns the newest runs.

    A record that is damaged matches always: what it was cannot be told.

    Args:
      limit: How many at most, the damaged ones that were met not counted; None for all.
      matches: Whether a run is asked for; None for all.
    """
    names = names_by_age(storage)
    found: list[RunRecord] = []
    damaged: list[DamagedRecord] = []
    num_read = 0
    while num_read < len(names) and (limit is None or len(found) < limit):
        block = len(names) if limit is None else limit - len(found)
        if matches is not None:
            block = max(block, _MIN_BLOCK)
        ahead = names[num_read : num_read + block]
        contents = read_contents(storage, ahead)
        for name in ahead:
            if limit is not None and len(found) == limit:
                break
            num_read += 1
            run = RunStorage(storage, run=name)
            content = contents.get(name)
            try:
                if content is None and not storage.list_names(run.checkpoints):
                    continue
                content = content or StorageError(no_such_run(storage, name))
            except StorageError as error:
                content = error
            record = _decode(run, content)
            if isinstance(record, DamagedRecord):
                damaged.append(record)
            elif matches is None or matches(record):
                found.append(record)
    return Listing(runs=(*found, *damaged), num_known=len(names), is_complete=num_read == len(names))


def _decode(storage: RunStorage, content: bytes | StorageError) -> RunRecord | DamagedRecord:
    try:
        if isinstance(content, StorageError):
            raise content
        return settled_record(content, storage)
    except StorageError as error:
        damage = RunError.from_exception(error, attempt=None)
        return DamagedRecord(run=storage.run, storage=storage.uri(storage.run), error=damage)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Files of a run, or of one folder of it."""

    num_files: int = 0
    num_bytes: int = 0


def usage_of(storage: RunStorage) -> dict[str, Usage]:
    """Returns what each folder and file of the run's own takes up, such as `checkpoints` and `run.json`."""
    found: dict[str, Usage] = {}
    for file in storage.list_files(storage.run):
        part = file.key.removeprefix(f"{storage.run}/").partition("/")[0]
        known = found.get(part, Usage())
        found[part] = Usage(num_files=known.num_files + 1, num_bytes=known.num_bytes + file.size_bytes)
    return found


def total(parts: dict[str, Usage]) -> Usage:
    """Returns the sum of what `usage_of` found."""
    return Usage(
        num_files=sum(part.num_files for part in parts.values()),
        num_bytes=sum(part.num_bytes for part in parts.values()),
    )


def check_is_over(storage: RunStorage, record: RunRecord | None) -> None:
    """Raises MistakeError if somebody drives the run.

    Args:
      record: run.json; None if it is damaged.
    """
    if ClaimStore(storage).is_driven(record, now_s=time.time()):
        raise MistakeError(
            f"run {storage.run} is still running; "
            f"wait for its end, or stop it first: {storage.command('stop')}"
        )


@dataclass(frozen=True, kw_only=True)
class Expired:
    """Runs that were last written before some time.

    Attributes:
      runs: Those that have ended.
      kept: Why another one is kept, by its name: somebody drives it, or its record cannot be read.
    """

    runs: tuple[tuple[RunStorage, RunRecord], ...]
    kept: Mapping[str, str]


def expired_runs(storage: Storage, *, before_s: float) -> Expired:
    """Returns the runs that were last written before that Unix time; raises StorageError."""
    runs: list[tuple[RunStorage, RunRecord]] = []
    kept: dict[str, str] = {}
    for record in list_runs(storage).runs:
        if not isinstance(record, RunRecord):
            kept[record.run] = record.error.message
        elif record.updated_at_s is not None and record.updated_at_s < before_s:
            opened = RunStorage(storage, run=record.run)
            try:
                check_is_over(opened, record)
                runs.append((opened, record))
            except (MistakeError, StorageError) as error:
                kept[record.run] = str(error)
    return Expired(runs=tuple(runs), kept=kept)


def remove_run(storage: RunStorage, record: RunRecord | None) -> None:
    """Deletes a run that nobody drives. run.json goes last, so a removal that was cut off can be repeated.

    Raises:
      MistakeError: Somebody drives the run.
      StorageError: Something could not be deleted; the run is listed still.
    """
    check_is_over(storage, record)
    record_name = storage.record.rpartition("/")[2]
    for name in storage.list_names(storage.run):
        if name != record_name:
            storage.delete(f"{storage.run}/{name}")
    storage.delete(storage.record)
    storage.delete(storage.run)
    for name in storage.list_names(INDEX):
        entry = storage.parse_index_entry(name)
        if entry is not None and entry[1] == storage.run:
            storage.delete(f"{INDEX}/{name}")
