"""from_parquet: Parquet files, read row group by row group."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist.data import columns as arrow_columns
from raydist.data.fields import Field
from raydist.data.files import DataFiles, first_line
from raydist.data.source import GroupedSource
from raydist.data.windows import Piece
from raydist.errors import DataError

_FOOTER_THREADS = 16
# Of the footers that are kept, as they are in the files; parsed they take nine times as much.
_FOOTERS_BYTES = 2e6


class ParquetSource(GroupedSource):
    """The rows of Parquet files."""

    def __init__(
        self,
        uris: str | Sequence[str],
        *,
        features: Sequence[str] | None,
        label: str | None,
        columns: Sequence[str] | None,
        dtype: Any,
        defaults: Mapping[str, Any],
    ) -> None:
        self._files = DataFiles(uris, what="from_parquet", is_wanted=_is_parquet)
        self._forget()
        with ThreadPoolExecutor(min(_FOOTER_THREADS, len(self._files)), "raydist-footers") as pool:
            footers = list(pool.map(self._footer, range(len(self._files))))
        schema = footers[0].schema.to_arrow_schema()
        self._columns = arrow_columns.choose(
            schema,
            features=features,
            label=label,
            columns=columns,
            defaults=defaults,
            where=self._files.uri(0),
        )
        self._layout = arrow_columns.Layout.of(
            self._columns, features=features, label=label, dtype=arrow_columns.stacked_type(dtype)
        )
        self.structure = self._layout.structure
        for number, footer in enumerate(footers):
            self._check_footer(number, footer)
        self._groups = [
            (number, group)
            for number, footer in enumerate(footers)
            for group in range(footer.num_row_groups)
            if footer.row_group(group).num_rows
        ]
        sizes = [footers[number].row_group(group).num_rows for number, group in self._groups]
        self.group_sizes = np.array(sizes, np.int64)
        if not sizes:
            raise DataError(
                f"from_parquet found no rows in {len(self._files)} files, {self._files.uri(0)} first"
            )
        self._widths = {
            column.name: arrow_columns.width_of(column, self._table(0, [column.name]))
            for column in self._columns
            if column.needs_width
        }
        self.fields: tuple[Field, ...] = self._layout.fields(self._widths)
        self._text_bytes = self._bytes_of_text(footers)

    def _forget(self) -> None:
        # A ParquetFile is not to be read by two threads at once: who reads takes it out of `_opened`.
        self._lock = threading.Lock()
        self._opened: tuple[int, pq.ParquetFile] | None = None
        # Of the files that were opened last, by number: the groups of a window come from any file, and a
        # footer may be as slow to parse as a group. One at least, as one of many groups is tens of MB.
        self._footers: dict[int, pq.FileMetaData] = {}

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock", "_opened", "_footers")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._text_bytes

    def fingerprint(self) -> int:
        return self._files.fingerprint()

    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        tables = (
            (self._table(piece.group).slice(piece.first, piece.num_rows), self._where(piece.group))
            for piece in pieces
        )
        num_rows = sum(piece.num_rows for piece in pieces)
        return self._layout.read(tables, num_rows, fields=self.fields, widths=self._widths)

    def _table(self, group: int, names: Sequence[str] | None = None) -> pa.Table:
        number, group_in_file = self._groups[group]
        names = names or [column.name for column in self._columns]

        def read() -> pa.Table:
            with self._lock:
                opened, self._opened = self._opened, None
            if opened is not None and opened[0] == number:
                self._files.check(number)
            else:
                # One at a time: the groups of a window come file by file only where they are not mixed.
                opened = number, self._open(number)
            table = opened[1].read_row_group(group_in_file, columns=names)
            self._opened = opened  # only now: after an error it is opened anew
            return table

        try:
            table = self._files.reading(number, read)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot read {self._where(group)}: {first_line(error)}") from error
        if table.num_rows != self.group_sizes[group]:
            raise DataError(
                f"{self._where(group)} has {table.num_rows} rows, not {self.group_sizes[group]} as before"
            )
        return table

    def _open(self, number: int) -> pq.ParquetFile:
        file = pq.ParquetFile(self._files.open(number), metadata=self._footers.get(number), pre_buffer=True)
        kept = {**self._footers, number: file.metadata}
        while len(kept) > 1 and sum(footer.serialized_size for footer in kept.values()) > _FOOTERS_BYTES:
            del kept[next(iter(kept))]
        self._footers = kept
        return file

    def _footer(self, number: int) -> pq.FileMetaData:
        def read() -> pq.FileMetaData:
            with self._files.open(number) as file:
                return pq.ParquetFile(file).metadata

        try:
            return self._files.reading(number, read)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._files.uri(number)} is no Parquet file: {first_line(error)}") from error

    def _bytes_of_text(self, footers: Sequence[pq.FileMetaData]) -> int:
        """Returns the bytes of a row's texts, by what the footers say of the chunks before compression."""
        names = {column.name for column in self._columns if column.dtype.kind == "O"}
        num_bytes = sum(
            chunk.total_uncompressed_size
            for number, group in (self._groups if names else ())
            for chunk in map(footers[number].row_group(group).column, range(footers[number].num_columns))
            if chunk.path_in_schema in names
        )
        return int(num_bytes) // len(self)

    def _check_footer(self, number: int, footer: pq.FileMetaData) -> None:
        uri = self._files.uri(number)
        schema = footer.schema.to_arrow_schema()
        for column in self._columns:
            column.check(schema, where=uri)
        places = {footer.schema.column(place).path: place for place in range(len(footer.schema))}
        for column in self._columns:
            place = places.get(column.name)
            if place is None or column.default is not None:
                continue
            for group in range(footer.num_row_groups):
                statistics = footer.row_group(group).column(place).statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    column.refuse_nulls(statistics.null_count, where=f"row group {group} of {uri}")

    def _where(self, group: int) -> str:
        number, group_in_file = self._groups[group]
        return f"row group {group_in_file} of {self._files.uri(number)}"


def from_parquet(
    uri: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: Any = "float32",
    defaults: Mapping[str, Any] | None = None,
) -> ParquetSource:
    """Returns a source of the rows of Parquet files.

    With `features` an example is `(x, y)`: `x` of shape `[len(features)]` (or, of a single column of lists,
    of their length), `y` the label's value; without `label` it is `x`. With `columns` it is a dict of a value
    for each, and with `label` beside them `(dict, y)`. With neither it is a dict of all but the label.
    Columns hold numbers, booleans, text or bytes, or lists of numbers of one length.

    Args:
      uri: A file, or a folder of which all `.parquet` files are read, or several of these; a path, or
        what pyarrow.fs opens, such as `s3://bucket/train`.
      dtype: Of the stacked features; other columns keep their types.
      defaults: What stands in for nulls, by column; a null in another column is an error.

    Raises:
      DataError: No files, no Parquet, a missing column, a type that is no tensor's, a null without a
        default; names file, row group and column.
    """
    if features is not None and columns is not None:
        raise DataError(
            "from_parquet got features and columns; give features for one tensor, or columns for a dict"
        )
    return ParquetSource(
        uri, features=features, label=label, columns=columns, dtype=dtype, defaults=dict(defaults or {})
    )


def _is_parquet(key: str) -> bool:
    return key.endswith((".parquet", ".parq", ".pq"))
