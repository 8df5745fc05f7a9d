"""Reads a run's metrics from storage as columns: a million rows are a few arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.errors import SpecError, StorageError
from raydist.metrics.parquet import SCHEMA
from raydist.metrics.records import Scope
from raydist.spec.tasks import TaskId
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage

# An object store answers slowly, but many requests at once.
_THREADS = 8
# Files that are joined before their words are numbered, which costs something for each array.
_GROUP_FILES = 64
# A run that goes on joins files about once in five minutes.
_LISTINGS = 3
_WORDS = ("task", "name")
_STORED = pa.schema([field for field in SCHEMA if field.name != "run"])
_NUMBERED = pa.dictionary(pa.int32(), pa.string())
# What a reader gets: of one scope, with the words as numbers of a dictionary.
COLUMNS = pa.schema(
    [
        pa.field(field.name, _NUMBERED if field.name in _WORDS else field.type)
        for field in _STORED
        if field.name != "scope"
    ]
)


def read_columns(storage: RunStorage, *, scope: Scope) -> pa.Table:
    """Returns the stored values of one scope, of every attempt and task, with the columns `COLUMNS`.

    The rows of one task in one attempt are in the order in which they were reported; one may be there twice.

    Raises:
      StorageError: Storage cannot be read, or a file of it is damaged.
    """
    for _ in range(_LISTINGS - 1):
        try:
            return _read_listed(storage, scope)
        except _GoneError:  # joined with others since it was listed
            pass
    return _read_listed(storage, scope)


class _GoneError(StorageError):
    """A file that was listed is not there any more."""


def _read_listed(storage: RunStorage, scope: Scope) -> pa.Table:
    names = storage.list_names(storage.metrics)
    keys = [f"{storage.metrics}/{name}" for name in names if name.endswith(".parquet")]
    size = max(1, min(_GROUP_FILES, len(keys) // (4 * _THREADS)))
    groups = [keys[start : start + size] for start in range(0, len(keys), size)]
    readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-metrics")
    try:
        parts = list(readers.map(lambda group: _read_group(storage, group, scope), groups))
    finally:
        readers.shutdown(cancel_futures=True)
    rows = pa.concat_tables([COLUMNS.empty_table(), *parts]).unify_dictionaries().combine_chunks()
    try:
        _check_words(rows)
    except (SpecError, UnicodeDecodeError) as error:
        raise StorageError(f"a file in {storage.uri(storage.metrics)} is damaged: {error}") from error
    return rows


def _check_words(rows: pa.Table) -> None:
    """Raises UnicodeDecodeError for what is no text, and SpecError for a task that is none."""
    pc.unique(rows["name"]).to_pylist()
    for task in pc.unique(rows["task"]).to_pylist():
        TaskId.parse(task)


def _read_group(storage: Storage, keys: Sequence[str], scope: Scope) -> pa.Table:
    rows = pa.concat_tables([_read_file(storage, key) for key in keys]).combine_chunks()
    of_scope = rows.filter(pc.equal(rows["scope"], scope.value)).drop_columns("scope")
    for name in _WORDS:
        number = of_scope.schema.get_field_index(name)
        of_scope = of_scope.set_column(number, name, of_scope[name].dictionary_encode())
    return of_scope.cast(COLUMNS)


def _read_file(storage: Storage, key: str) -> pa.Table:
    try:
        content = storage.read_bytes(key)
    except StorageError as error:
        if storage.exists(key):
            raise
        raise _GoneError(str(error)) from error
    try:
        # Each file is read by one thread: there are many, and handing out its columns takes longer.
        file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, page_checksum_verification=True)
        rows = file.read(columns=_STORED.names, use_threads=False)
        return rows if rows.schema.equals(_STORED) else rows.select(_STORED.names).cast(_STORED)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise StorageError(f"{storage.uri(key)} is damaged: {error}") from error
