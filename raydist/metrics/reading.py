"""Reads a run's metrics from storage as columns: a million rows are a few arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.errors import SpecError, StorageError
from raydist.metrics.parquet import SCHEMA
from raydist.outcome.status import Scope
from raydist.spec.tasks import TaskId
from raydist.storage.filesystem import FoundFile, Storage
from raydist.storage.limits import MAX_TIME_S, check_rows
from raydist.storage.run_storage import RunStorage

# An object store answers slowly, but many requests at once.
_THREADS = 8
# Files that are put together before their words are numbered, which costs something for each array.
_GROUP_FILES = 64
_MAX_NAME_LENGTH = 10_000
_NUMBERED = pa.dictionary(pa.int32(), pa.string())
# As files are read: a word that a million rows share is there once.
_TEXTS = ("task", "scope", "name")
_STORED = pa.schema(
    [field.with_type(_NUMBERED) if field.name in _TEXTS else field for field in SCHEMA if field.name != "run"]
)
# What a reader gets: of one scope, with the words as numbers of a dictionary.
COLUMNS = pa.schema([pa.field(field.name, field.type) for field in _STORED if field.name != "scope"])


Choose = Callable[[Collection[TaskId]], Collection[TaskId]]


def read_columns(
    storage: RunStorage, *, scope: Scope, on_damage: Callable[[StorageError], object] | None = None
) -> pa.Table:
    """Returns the stored values of one scope, of every attempt and task, with the columns `COLUMNS`.

    The rows of one task in one attempt are in the order in which they were reported.

    Args:
      on_damage: Takes the error of each damaged file, which is left out; None raises it.

    Raises:
      StorageError: Storage cannot be read, or a file of it is damaged.
    """
    return read_scopes(storage, scopes=(scope,), on_damage=on_damage)[scope]


def read_scopes(
    storage: RunStorage,
    *,
    scopes: Collection[Scope] = tuple(Scope),
    choose: Choose = lambda tasks: tasks,
    on_damage: Callable[[StorageError], object] | None = None,
) -> dict[Scope, pa.Table]:
    """Returns the same for several scopes, each file read once.

    Args:
      choose: Returns those of the tasks whose files are to be read.
      on_damage: Takes the error of each damaged file, which is left out; None raises it.
    """
    files = {
        name: storage.parse_metrics(name)
        for name in storage.list_names(storage.metrics)
        if name.endswith(".parquet")
    }
    chosen = {None, *choose({task for task in files.values() if task is not None})}
    keys = [f"{storage.metrics}/{name}" for name, task in files.items() if task in chosen]
    size = max(1, min(_GROUP_FILES, len(keys) // (4 * _THREADS)))
    groups = [keys[start : start + size] for start in range(0, len(keys), size)]
    readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-metrics")
    try:
        parts = list(readers.map(lambda group: _read_group(storage, group, scopes, on_damage), groups))
    finally:
        readers.shutdown(cancel_futures=True)
    return {scope: _joined([part[scope] for part in parts]) for scope in scopes}


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """What `read_new` has found.

    Attributes:
      rows: By name of column, as `COLUMNS` has them; of one task in one attempt in the order of the reports.
      files: The files that are known now.
    """

    rows: list[dict[str, Any]]
    files: frozenset[FoundFile]


def read_new(
    storage: RunStorage,
    *,
    scope: Scope,
    known: Container[FoundFile],
    on_damage: Callable[[StorageError], object],
) -> NewRows:
    """Returns the rows of the files that are not `known` yet, or have grown: then all of their rows.

    Args:
      on_damage: Takes the error of each damaged file, which is left out.

    Raises:
      StorageError: Storage cannot be read.
    """
    files = [file for file in storage.list_files(storage.metrics) if file.key.endswith(".parquet")]
    rows: list[dict[str, Any]] = []
    for file in files:
        if file not in known:
            rows += _read_group(storage, [file.key], (scope,), on_damage)[scope].to_pylist()
    return NewRows(rows=rows, files=frozenset(files))


def _reason(error: Exception) -> str:
    """Returns the first sentence of an error, of which pyarrow's have several, on lines of their own too."""
    first = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return "".join(each if each.isprintable() else "?" for each in first)


class _DamagedFileError(StorageError):
    """A file that is there does not hold what was written."""


def _joined(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([COLUMNS.empty_table(), *parts]).unify_dictionaries().combine_chunks()


def _read_group(
    storage: Storage,
    keys: Sequence[str],
    scopes: Collection[Scope],
    on_damage: Callable[[StorageError], object] | None,
) -> dict[Scope, pa.Table]:
    files: dict[str, pa.Table] = {}
    try:
        for key in keys:
            files[key] = _read_file(storage, key)
        rows = pa.concat_tables(files.values()).unify_dictionaries().combine_chunks()
        _check_words(rows, storage.uri(", ".join(keys)))
    except _DamagedFileError as error:
        if on_damage is None:
            raise
        if len(keys) > 1:  # found together, as checking each file's words takes longer than reading it
            parts = [_read_group(storage, [key], scopes, on_damage) for key in keys]
            return {scope: pa.concat_tables([part[scope] for part in parts]) for scope in scopes}
        on_damage(error)
        rows = _STORED.empty_table()
    return {scope: _of_scope(rows, scope) for scope in scopes}


def _of_scope(rows: pa.Table, scope: Scope) -> pa.Table:
    of_scope = rows.filter(pc.equal(rows["scope"], scope.value)).select(COLUMNS.names).cast(COLUMNS)
    for number, field in enumerate(COLUMNS):
        if field.type == _NUMBERED:
            used = pa.chunked_array(map(_used_words, of_scope.column(number).chunks), _NUMBERED)
            of_scope = of_scope.set_column(number, field, used)
    return of_scope


def _used_words(words: pa.DictionaryArray) -> pa.DictionaryArray:
    """Returns them without those of its dictionary that no row has."""
    numbers, is_used = words.indices.to_numpy(), np.zeros(len(words.dictionary), bool)
    is_used[numbers] = True
    places = (np.cumsum(is_used) - 1).astype(np.int32)
    return pa.DictionaryArray.from_arrays(places[numbers], words.dictionary.filter(pa.array(is_used)))


def _read_file(storage: Storage, key: str) -> pa.Table:
    content = storage.read_bytes(key)
    try:
        # Each file is read by one thread: there are many, and handing out its columns takes longer.
        file = pq.ParquetFile(
            pa.BufferReader(content),
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=list(_TEXTS),
        )
        check_rows(_rows_in(file.metadata), num_bytes=len(content))
        rows = file.read(columns=_STORED.names, use_threads=False)
        if any(rows[field.name].null_count for field in _STORED if not field.nullable):
            raise ValueError("a value is missing")
        times = rows["wall_time"].to_numpy()
        if not ((times >= 0) & (times <= MAX_TIME_S)).all():
            raise ValueError("a wall_time is not a Unix time")
        return rows if rows.schema.equals(_STORED) else rows.select(_STORED.names).cast(_STORED)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _DamagedFileError(f"{storage.uri(key)} is damaged: {_reason(error)}") from error


def _rows_in(metadata: Any) -> int:
    """Returns the rows that a file says that it has, or more that its row groups say."""
    groups = range(metadata.num_row_groups)
    return int(max(metadata.num_rows, sum(metadata.row_group(number).num_rows for number in groups)))


def _words(column: pa.ChunkedArray) -> Iterator[str]:
    for chunk in column.chunks:
        yield from chunk.dictionary.to_pylist()


def _check_words(rows: pa.Table, where: str) -> None:
    """Raises _DamagedFileError for a name that is not text, and for what is not a task."""
    try:
        for task in _words(rows["task"]):
            TaskId.parse(task)
        for scope in _words(rows["scope"]):
            Scope(scope)
        if any(len(name) > _MAX_NAME_LENGTH for name in _words(rows["name"])):
            raise SpecError(f"a metric's name has more than {_MAX_NAME_LENGTH} characters")
    except (SpecError, ValueError) as error:
        raise _DamagedFileError(f"{where} is damaged: {_reason(error)}") from error
