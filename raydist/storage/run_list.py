"""The records of the runs on a storage, the newest first, of which no more are read than are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raydist.errors import StorageError
from raydist.spec.result import RunError
from raydist.storage.filesystem import Storage
from raydist.storage.run_names import names_by_age, read_contents
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
            if name not in contents:
                continue
            record = _decode(RunStorage(storage, run=name), contents[name])
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
