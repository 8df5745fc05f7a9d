"""from_csv: CSV files, whose rows are found by an index that is built once."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raydist.data.sources.arrow import ArrowSource, Layout
from raydist.data.sources.columns import Column, Selection
from raydist.data.sources.files import DataFiles, Uris, first_line
from raydist.data.sources.index import GROUP_BYTES, GROUP_ROWS, INDEX_THREADS, READ_BYTES, index_of
from raydist.errors import DataError
from raydist.spec.text import suggest

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
# Of the files of a folder; what is compressed is refused when it is read, not left out.
ENDINGS = tuple(f"{ending}{more}" for ending in (".csv", ".tsv") for more in ("", *_COMPRESSED))
_MOST_ROW_BYTES = 64 << 20
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What pyarrow says of a value or a row; it counts rows from 1, and no blank lines.
_BAD = re.compile(r"(?:In CSV column #(?P<column>\d+)|CSV parse error): Row #(?P<row>\d+): (?P<reason>.*)")


class CsvFiles:
    """The rows of CSV files with the same columns, in groups."""

    def __init__(
        self, uris: Uris, *, what: str, types: Mapping[str, Any] | None = None, delimiter: str = ","
    ) -> None:
        """Looks through the files.

        Args:
          what: The function that was called, for messages.
          types: Of columns, in place of those that their first rows show; None where the user cannot give
            them: then a column whose type differs between files is text.
        """
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise DataError(f"delimiter is {delimiter!r}; give one character, such as ';' or '\\t'")
        self._delimiter = delimiter
        self._takes_types, self.typed = types is not None, frozenset(types or ())
        self.files = DataFiles(uris, what=what, is_wanted=lambda key: key.lower().endswith(ENDINGS))
        found = self.files.of_each(
            f"csv {delimiter}",
            self._looked_at,
            num_threads=INDEX_THREADS if self.files.are_remote else 1,
            part_files=1,
        )
        indexes = [index for index, _ in found]
        self.file_of_group = np.repeat(
            np.arange(len(found), dtype=np.int32), [len(index) - 1 for index in indexes]
        )
        self._begins = np.concatenate([index[:-1, 0] for index in indexes])
        self._ends = np.concatenate([index[1:, 0] for index in indexes])
        self.group_sizes = np.concatenate([np.diff(index[:, 1]) for index in indexes])
        self._lines = np.concatenate([index[:-1, 2] for index in indexes])
        schemas = [schema for _, schema in found]
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._names = [known.setdefault(names, names) for names in (tuple(one.names) for one in schemas)]
        self.schema = self._common(schemas, dict(types or {}))

    def _looked_at(self, number: int) -> tuple[np.ndarray, pa.Schema]:
        """Returns the index of a file, and its columns with the types of its first group."""
        uri = self.files.uri(number)
        scan = functools.partial(_scan, delimiter=self._delimiter)
        index = index_of(self.files, number, f"csv-groups-{ord(self._delimiter)}", scan)
        begin, end = index[0, 0], index[:2, 0].max()
        content = self.files.content(number, 0, int(end))
        names = _names_in(content[:begin], self._delimiter, uri)
        if begin == end:
            return index, pa.schema([(name, pa.null()) for name in names])
        table = self._parsed(content[begin:], names, None, number=number, line=int(index[0, 2]))
        return index, pa.schema([(field.name, _kept_type(field.type)) for field in table.schema])

    def _common(self, schemas: Sequence[pa.Schema], types: Mapping[str, Any]) -> pa.Schema:
        """Returns the columns, with a type for all files; raises DataError where there is none."""
        names, where = schemas[0].names, self.files.uri(0)
        chosen = {name: _chosen_type(name, kind, names) for name, kind in types.items()}
        firsts: dict[pa.Schema, int] = {}
        for number, schema in enumerate(schemas):
            firsts.setdefault(schema, number)
        kinds = dict.fromkeys(names, pa.null())
        for schema, number in firsts.items():
            uri = self.files.uri(number)
            for name in sorted({*names} ^ {*schema.names}):
                lacking, other = (uri, where) if name in kinds else (where, uri)
                raise DataError(
                    f"{lacking} has no column {name}, as {other} has; write all with the same columns"
                )
            for name, kind in zip(schema.names, schema.types, strict=True):
                if name in chosen or kind in (pa.null(), kinds[name]):
                    continue
                pair = {kind, kinds[name]}
                if pair in ({pa.int64(), pa.float64()}, {pa.null(), kind}):
                    kinds[name] = pa.float64() if pa.float64() in pair else kind
                elif self._takes_types:
                    told = f"column {name} is {kind} in {uri}, and {kinds[name]} in files before it"
                    raise DataError(f"{told}; {self._remedy(name)}")
                else:
                    kinds[name] = pa.string()
        return pa.schema({**kinds, **chosen})

    def _remedy(self, name: str) -> str:
        return "correct it" + (f", or give types={{{name!r}: …}}" if self._takes_types else "")

    def where(self, group: int) -> str:
        """Returns what errors call a group."""
        uri = self.files.uri(int(self.file_of_group[group]))
        return f"the {self.group_sizes[group]} rows from line {self._lines[group]} of {uri}"

    def table(self, group: int, kinds: Mapping[str, pa.DataType], *, full: Iterable[str]) -> pa.Table:
        """Returns the rows of a group with columns of these types; raises DataError for a null in `full`."""
        number, line = int(self.file_of_group[group]), int(self._lines[group])
        content = self.files.content(number, int(self._begins[group]), int(self._ends[group]))
        table = self._parsed(content, self._names[number], kinds, number=number, line=line)
        if table.num_rows != self.group_sizes[group]:
            raise DataError(f"{self.where(group)} are {table.num_rows} now; the file changed, or was cut off")
        for name in full:
            if table.column(name).null_count:
                row = pc.index(pc.is_null(table.column(name)), True).as_py()
                where = f"line {line + self._lines_before(content, row)} of {self.files.uri(number)}"
                Column(name=name, type=kinds[name]).refuse_nulls(1, where=where)
        return table

    def _parsed(
        self,
        content: bytes,
        names: Sequence[str],
        kinds: Mapping[str, pa.DataType] | None,
        *,
        number: int,
        line: int,
    ) -> pa.Table:
        """Returns rows of a file, the first of which is in `line`; None for `kinds` finds out the types."""
        wanted = None if kinds is None else [*kinds]
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(content),
                # With threads, errors do not name the row.
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(content) + 1),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=wanted),
            )
        except pa.ArrowException as error:
            uri, bad = self.files.uri(number), _BAD.match(first_line(error))
            if bad is None:
                told = f"cannot read {uri} from line {line} on: {first_line(error)}"
                raise DataError(told) from error
            where = f"line {line + self._lines_before(content, int(bad['row']) - 1)} of {uri}"
            if bad["column"] is None:
                remedy = f"put text with {self._delimiter!r} or line ends in it into quotes"
                raise DataError(f"{where} is not a row: {bad['reason']}; {remedy}") from error
            name = names[int(bad["column"])]
            value = bad["reason"].partition(": ")[2].removeprefix("invalid value ")
            kind = "" if kinds is None else f", which is {kinds[name]}"
            raise DataError(f"{where} has {value} in column {name}{kind}; {self._remedy(name)}") from error

    def _lines_before(self, content: bytes, row: int) -> int:
        starts, _ = _rows_in(content + b"\n", self._delimiter, "", 0)
        return content.count(b"\n", 0, int(starts[row]))


class CsvSource(ArrowSource):
    """The rows of CSV files."""

    def __init__(self, rows: CsvFiles, selection: Selection) -> None:
        self._rows, self.files = rows, rows.files
        uri = rows.files.uri(0)
        if not len(rows.group_sizes):
            raise DataError(f"{selection.what} found no rows in {len(rows.files)} files, {uri} first")
        for name in [*(selection.wanted or rows.schema.names), *filter(None, [selection.label])]:
            if name in rows.schema.names and pa.types.is_null(rows.schema.field(name).type):
                raise DataError(
                    f"column {name} of {uri} has no values in the first rows, which tell its type; give "
                    f"types={{{name!r}: …}}"
                )
        for name in sorted({*(selection.features or ())} & {*rows.schema.names} - rows.typed):
            if pa.types.is_string(rows.schema.field(name).type):
                rows.table(0, {name: pa.float64()}, full=())  # tells the value that is not a number
        layout = Layout.of(rows.schema, selection, where=uri)
        texts = {name: rows.schema.field(name).type for name in layout.texts}
        text_bytes = rows.table(0, texts, full=()).nbytes // int(rows.group_sizes[0]) if texts else 0
        super().__init__(layout, rows.group_sizes, text_bytes=text_bytes)

    def fingerprint(self) -> int:
        return self._rows.files.fingerprint()

    def _table(self, group: int, names: Sequence[str]) -> pa.Table:
        kinds = {name: self._rows.schema.field(name).type for name in names}
        full = [column.name for column in self._layout.columns if column.default is None]
        table = self._rows.table(group, kinds, full=full)
        # pyarrow takes a missing text for an empty one.
        for name in {*names} & {*self._layout.texts} - {*full}:
            values = table.column(name)
            is_empty = pc.equal(pc.binary_length(values), 0)
            values = pc.if_else(is_empty, pa.scalar(None, values.type), values)
            table = table.set_column(table.column_names.index(name), name, values)
        return table

    def _where(self, group: int) -> str:
        return self._rows.where(group)


def from_csv(
    uri: Uris,
    *,
    features: Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: Any = "float32",
    defaults: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    delimiter: str = ",",
) -> CsvSource:
    """Returns a source of the rows of CSV files, whose first lines have the names of the columns.

    Example:
        source = raydist.data.from_csv("s3://bucket/train", features=["age"], label="bought")

    The first time that a host sees a file, the places of its rows are looked up and kept below
    `RAYDIST_CACHE` (default `~/.cache/raydist`). Columns are whole numbers, numbers, `true` and `false`, or
    text, as the first rows of each file show. Quotes may hold line ends.

    Args:
      uri: A file, or a folder of which all `.csv` and `.tsv` files are read, or several of these.
      features, label, columns, dtype: As for `from_parquet`.
      defaults: Replacements for values that are missing, by column: empty ones, and in a column of numbers
        NA, NaN and null. Without one, an empty text stays, and a missing number is an error.
      types: Arrow or NumPy types by column, such as `{"zip": "string"}`, in place of those that the
        first rows show.

    Raises:
      DataError: No files, a compressed one, other columns than in the first file, a value that is not of its
        column's type, a missing value without a default; names file and line.
    """
    selection = Selection(
        what="from_csv",
        features=features,
        label=label,
        columns=columns,
        dtype=dtype,
        defaults=defaults or {},
    )
    return CsvSource(CsvFiles(uri, what="from_csv", types=types or {}, delimiter=delimiter), selection)


def _scan(files: DataFiles, number: int, *, delimiter: str) -> np.ndarray:
    """Returns where the groups of a file begin, int64 `[groups + 1, 3]`: its first byte, row and line."""
    size, uri = files.size(number), files.uri(number)
    index: list[tuple[int, int, int]] = []
    if uri.lower().endswith(_COMPRESSED):
        raise DataError(_compressed(uri))
    rest, at, read, row, line = b"", 0, 0, 0, 1  # `rest` begins at `at`, in `line`
    while read < size:
        content = rest + files.content(number, read, read + READ_BYTES)
        if not read and content.startswith(_GZIP):
            raise DataError(_compressed(uri))
        read = min(size, read + READ_BYTES)
        if read == size and not content.endswith(b"\n"):
            content += b"\n"
        ends = _rows_in(content, delimiter, uri, line)[1]
        begin = 0
        if len(ends) and not index:
            begin, ends = int(ends[0]), ends[1:]
            line += content.count(b"\n", 0, begin)
            index.append((begin, 0, line))
        while len(ends):
            most = int(np.searchsorted(ends, begin + GROUP_BYTES, side="right"))
            num_rows = min(max(1, most), GROUP_ROWS)
            end = int(ends[num_rows - 1])
            ends, row = ends[num_rows:], row + num_rows
            line += content.count(b"\n", begin, end)
            begin = end
            index.append((at + end, row, line))
        rest, at = content[begin:], at + begin
        if len(rest) > _MOST_ROW_BYTES or (read == size and rest.strip(b"\r\n")):
            raise DataError(
                f"line {line} of {uri} has a quote that is not closed; close it, or double it in text"
            )
    if not index:
        raise DataError(f"{uri} is empty; write a line with the names of its columns, and rows below it")
    return np.array([*index[:-1], (size, *index[-1][1:])], np.int64)


def _rows_in(content: bytes, delimiter: str, uri: str, line: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the rows that end in `content` begin and end, without blank lines."""
    characters = np.frombuffer(content, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    before = characters[quotes[::2] - 1]
    if not (np.isin(before, [ord(delimiter), *b'\n"']) | (quotes[::2] == 0)).all():
        # A quote within a field, where every other one does not end a text: slower.
        hidden = bytes.maketrans(b"\r\n", b"  ")
        masked = _quoted(delimiter).sub(lambda found: found[0].translate(hidden), content)
        characters, quotes = np.frombuffer(masked, np.uint8), quotes[:0]

    def outside(character: str) -> np.ndarray:
        """Returns where a character is outside of quoted texts."""
        places = np.flatnonzero(characters == ord(character))
        found: np.ndarray = places[np.searchsorted(quotes, places) % 2 == 0]
        return found

    ends = outside("\n") + 1
    returns = outside("\r")
    returns = returns[: np.searchsorted(returns, ends[-1])] if len(ends) else returns[:0]
    if (characters[returns + 1] != ord("\n")).any():
        raise DataError(f"{uri} has a row, from line {line} on, that ends with \\r alone; end rows with \\n")
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    is_row = (ends - starts > 2) | ((ends - starts == 2) & (characters[starts] != ord("\r")))
    return starts[is_row], ends[is_row]


def _compressed(uri: str) -> str:
    return f"{uri} is compressed, and cannot be read from the middle; decompress it"


@functools.cache
def _quoted(delimiter: str) -> re.Pattern[bytes]:
    """Returns what finds quoted text; a quote within a field is an ordinary character, as for pyarrow.

    Text without an end, as where only the beginning of a row has been read, goes on to the end.
    """
    before = re.escape(f"{delimiter}\n".encode())
    return re.compile(rb'(?<![^%b])"[^"]*(?:""[^"]*)*(?:"|\Z)' % before)


def _names_in(header: bytes, delimiter: str, uri: str) -> list[str]:
    """Returns the names of columns; raises DataError for a line of values."""
    try:
        text = header.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{uri} does not begin with text in UTF-8; write it so") from error
    names = next(row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row)
    if (
        len(names) == 1
        and not text.startswith('"')
        and (others := [one for one in ",;\t|" if one in names[0]])
    ):
        raise DataError(
            f"{uri} has one column, {names[0]!r}, with {delimiter!r} as delimiter; write it with commas, or "
            f"give from_csv delimiter={others[0]!r}"
        )
    numbers = []
    for name in names:
        with suppress(ValueError):
            numbers.append(float(name))
    is_count = sorted(numbers) == list(range(len(names)))  # as pandas names them
    if any(not one.is_integer() for one in numbers) or (len(numbers) == len(names) and not is_count):
        raise DataError(
            f"{uri} begins with values ({', '.join(names[:3])}), not with names; write the names of the "
            "columns as its first line"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{uri} has two columns {twice[0]!r}; is its first line that of the names?")
    return names


def _kept_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that is kept: a date or time is a text."""
    kept = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_null,
        pa.types.is_binary,
    )
    return kind if any(check(kind) for check in kept) else pa.string()


def _chosen_type(name: str, kind: Any, names: Sequence[str]) -> pa.DataType:
    if name not in names:
        raise DataError(f"types names column {name}, which is not there; {suggest(name, names)}")
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(kind)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise DataError(
            f"types has {kind!r} for column {name}; give a type of Arrow, such as 'int64', 'float32', 'bool' "
            "or 'string'"
        ) from error
