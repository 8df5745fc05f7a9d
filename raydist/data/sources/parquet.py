"""from_parquet: Parquet files, read row group by row group."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist.data.sources.arrow import ArrowSource, Layout
from raydist.data.sources.columns import Column, Selection
from raydist.data.sources.files import DataFiles, Uris, first_line
from raydist.errors import DataError

# Of the footers that are kept, as they are in the files; parsed they take nine times as much.
_FOOTERS_BYTES = 2e6
# Open files that nobody reads just now.
_MAX_IDLE = 8


class _Facts(NamedTuple):
    """What is kept of a footer."""

    groups: np.ndarray  # the row groups that are not empty, int32
    sizes: np.ndarray  # their rows, int64
    text_bytes: int  # of all columns of text


class ParquetSource(ArrowSource):
    """The rows of Parquet files."""

    files: DataFiles

    def __init__(self, uris: Uris, selection: Selection) -> None:
        self.files = DataFiles(uris, what="from_parquet", is_wanted=_is_parquet)
        self._forget()
        [schema] = self.files.of_each("schema", lambda number: self._footer(number)[1], of=1)
        layout = Layout.of(schema, selection, where=self.files.uri(0))
        # Of a footer, which has tens of kB, only this is kept.
        found = self.files.of_each(f"groups {layout}", lambda number: self._facts(number, layout))
        self._file_of = np.repeat(np.arange(len(found), dtype=np.int32), [len(one.groups) for one in found])
        self._group_in_file = np.concatenate([one.groups for one in found])
        sizes = np.concatenate([one.sizes for one in found])
        if not len(sizes):
            raise DataError(
                f"from_parquet found no rows in {len(self.files)} files, {self.files.uri(0)} first"
            )
        text_bytes = sum(one.text_bytes for one in found) // int(sizes.sum())
        super().__init__(layout, sizes, text_bytes=text_bytes)

    def _facts(self, number: int, layout: Layout) -> _Facts:
        footer, schema = self._footer(number)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        _check_footer(schema, groups, layout.columns, uri=self.files.uri(number))
        sizes = np.array([group.num_rows for group in groups], np.int64)
        text_bytes = _bytes_of(set(layout.texts), groups)
        return _Facts(np.flatnonzero(sizes).astype(np.int32), sizes[sizes > 0], text_bytes)

    def _forget(self) -> None:
        # A ParquetFile is not to be read by two threads at once: who reads takes it out of `_idle`.
        self._lock = threading.Lock()
        self._idle: dict[int, pq.ParquetFile] = {}
        # Of the files that were opened last, by number: the groups of a window come from any file, and a
        # footer may be as slow to parse as a group. One at least, as one of many groups is tens of MB.
        self._footers: dict[int, pq.FileMetaData] = {}

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock", "_idle", "_footers")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def fingerprint(self) -> int:
        return self.files.fingerprint()

    def _table(self, group: int, names: Sequence[str]) -> pa.Table:
        number, group_in_file = int(self._file_of[group]), int(self._group_in_file[group])

        def read() -> pa.Table:
            with self._lock:
                opened = self._idle.pop(number, None)
            if opened is not None:
                self.files.check(number)
            else:
                opened = self._open(number)
            table = opened.read_row_group(group_in_file, columns=list(names))
            self._leave(number, opened)  # only now: after an error it is opened again
            return table

        try:
            table = self.files.reading(number, read)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot read {self._where(group)}: {first_line(error)}") from error
        if table.num_rows != self.group_sizes[group]:
            raise DataError(
                f"{self._where(group)} has {table.num_rows} rows, not {self.group_sizes[group]} as before"
            )
        return table

    def _leave(self, number: int, opened: pq.ParquetFile) -> None:
        """Keeps an open file for the next of its groups, if its footer is kept too."""
        with self._lock:
            self._idle[number] = opened
            for old in list(self._idle):
                if old not in self._footers or len(self._idle) > _MAX_IDLE:
                    del self._idle[old]

    def _open(self, number: int) -> pq.ParquetFile:
        file = pq.ParquetFile(self.files.open(number), metadata=self._footers.get(number), pre_buffer=True)
        kept = {**self._footers, number: file.metadata}
        while len(kept) > 1 and sum(footer.serialized_size for footer in kept.values()) > _FOOTERS_BYTES:
            del kept[next(iter(kept))]
        self._footers = kept
        return file

    def _footer(self, number: int) -> tuple[pq.FileMetaData, pa.Schema]:
        def read() -> tuple[pq.FileMetaData, pa.Schema]:
            with self.files.open(number) as file:
                opened = pq.ParquetFile(file)
                # Not `metadata.schema`, by which the metadata, of a MB or more, would refer to itself:
                # thousands would wait for Python's collector, which is in no hurry about so few objects.
                return opened.metadata, opened.schema_arrow

        try:
            return self.files.reading(number, read)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.files.uri(number)} is not a Parquet file: {first_line(error)}") from error

    def _where(self, group: int) -> str:
        return f"row group {self._group_in_file[group]} of {self.files.uri(int(self._file_of[group]))}"


def from_parquet(
    uri: Uris,
    *,
    features: Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: Any = "float32",
    defaults: Mapping[str, Any] | None = None,
    ragged: Sequence[str] = (),
    padded_shapes: Mapping[str, Any] | None = None,
    padding_values: Mapping[str, Any] | None = None,
) -> ParquetSource:
    """Returns a source of the rows of Parquet files.

    Example:
        source = raydist.data.from_parquet("s3://bucket/train", features=["age"], label="bought")

    With `features` an example is `(x, y)`: `x` of shape `[len(features)]` (or, of a single column of lists,
    of their length), `y` the label's value; without `label` it is `x`. With `columns` it is a dict of a value
    for each, and with `label` beside them `(dict, y)`. With neither it is a dict of all but the label.
    Columns hold numbers, booleans, text or bytes, or lists of numbers. Lists of different lengths become a
    `tf.RaggedTensor`, or are padded:

        raydist.data.from_parquet(uri, label="y", ragged=["tokens"])
        raydist.data.from_parquet(uri, label="y", padded_shapes={"tokens": 128})

    Args:
      uri: A file, or a folder of which all `.parquet` files are read, or several of these; a path (text
        or `pathlib.Path`), or what pyarrow.fs opens, such as `s3://bucket/train`.
      dtype: Of the stacked features; other columns keep their types.
      defaults: Replacements for nulls, by column; a null in another column is an error.
      ragged: Columns of lists that become `tf.RaggedTensor`s.
      padded_shapes: For columns of lists, the length that all are padded to.
      padding_values: What they are padded with, by column; 0 by default.

    Raises:
      DataError: No files, no Parquet, a missing column, a type that has no tensor type, a null without a
        default; names file, row group and column.
    """
    selection = Selection(
        what="from_parquet",
        features=features,
        label=label,
        columns=columns,
        dtype=dtype,
        defaults=defaults or {},
        ragged=ragged,
        padded_shapes=padded_shapes or {},
        padding_values=padding_values or {},
    )
    return ParquetSource(uri, selection)


def _bytes_of(names: Collection[str], groups: Iterable[pq.RowGroupMetaData]) -> int:
    """Returns the bytes of some columns before compression, by what the footers say of their chunks."""
    if not names:
        return 0
    return sum(
        int(chunk.total_uncompressed_size)
        for group in groups
        for chunk in map(group.column, range(group.num_columns))
        if {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]}
        & {*names}  # of lists: x.list.element
    )


def _check_footer(
    schema: pa.Schema, groups: Sequence[pq.RowGroupMetaData], columns: Sequence[Column], *, uri: str
) -> None:
    """Raises DataError unless a file has the columns, and no nulls where none may be, as far as it says."""
    for column in columns:
        column.check(schema, where=uri)
    first = groups[:1]
    places = {one.column(place).path_in_schema: place for one in first for place in range(one.num_columns)}
    for column in columns:
        place = places.get(column.name)
        if place is None or column.default is not None:
            continue
        for number, group in enumerate(groups):
            statistics = group.column(place).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                column.refuse_nulls(statistics.null_count, where=f"row group {number} of {uri}")


def _is_parquet(key: str) -> bool:
    return key.endswith((".parquet", ".parq", ".pq"))
