"""What a run takes up on its storage, and how it is removed from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from raydist.errors import MistakeError, StorageError
from raydist.storage.claims.claims import ClaimStore
from raydist.storage.filesystem import Storage
from raydist.storage.layout import INDEX
from raydist.storage.run_list import list_runs
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import RunStorage


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Files of a run, or of one folder of it."""

    num_files: int = 0
    num_bytes: int = 0

    def with_file(self, num_bytes: int) -> Usage:
        return Usage(num_files=self.num_files + 1, num_bytes=self.num_bytes + num_bytes)


def usage_of(storage: RunStorage) -> dict[str, Usage]:
    """Returns what each folder and file of the run's own takes up, such as `checkpoints` and `run.json`."""
    found: dict[str, Usage] = {}
    for file in storage.list_files(storage.run):
        part = file.key.removeprefix(f"{storage.run}/").partition("/")[0]
        found[part] = found.get(part, Usage()).with_file(file.size_bytes)
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
            f"wait for its end, or stop it first: raydist stop {storage.run}"
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
