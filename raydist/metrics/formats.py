"""A table of metrics as CSV, JSON or aligned text, whole columns of some lines at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.metrics.curves import MetricTable
from raydist.spec.text import escaped

_BLOCK_LINES = 16_384


def csv_blocks(table: MetricTable) -> Iterator[bytes]:
    """Yields CSV, the header first; what a task did not report is an empty cell."""
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    yield header.getvalue().encode()
    for block in _blocks(table):
        cells = [pc.fill_null(_as_text(column), "") for column in block]
        yield _joined(cells, separator=",", end="\n")


def together(tables: Mapping[str, MetricTable]) -> MetricTable:
    """Returns the tables of several runs as one, whose first column is the run; that of one as it is."""
    if len(tables) == 1:
        return next(iter(tables.values()))
    named = [
        table.add_column(0, "run", pa.array([run] * table.num_rows, pa.string()))
        for run, table in tables.items()
    ]
    return pa.concat_tables(named, promote_options="default")


def json_blocks(tables: Mapping[str, MetricTable]) -> Iterator[bytes]:
    """Yields one JSON object, `{"run": …, "metrics": [{"step": …}, …]}`, with a line for each of a table.

    Those of several runs are in `{"runs": […]}`. NaN, infinities and what a task did not report are null.
    """
    if len(tables) > 1:
        yield b'{"runs": [\n'
    for number, (run, table) in enumerate(tables.items()):
        if number:
            yield b","
        yield from _json_blocks_of(table, run)
    if len(tables) > 1:
        yield b"]}\n"


def _json_blocks_of(table: MetricTable, run: str) -> Iterator[bytes]:
    yield f'{{"run": {json.dumps(run)}, "metrics": ['.encode()
    before = "\n"
    for block in _blocks(table):
        cells = [
            pc.binary_join_element_wise(f"{json.dumps(name, ensure_ascii=False)}: ", _as_json(column), "")
            for name, column in zip(table.column_names, block, strict=True)
        ]
        # The comma stands before each line but the table's first: no line knows whether it is the last.
        lines = _joined(cells, separator=", ", start=",\n  {", end="}")
        yield before.encode() + lines.removeprefix(b",\n")
        before = ",\n"
    yield b"\n]}\n" if table.num_rows else b"]}\n"


def text_blocks(table: MetricTable) -> Iterator[bytes]:
    """Yields aligned columns, the header first, as `cli.screen.output.print_table` prints them."""
    blocks = [[_as_cells(column) for column in block] for block in _blocks(table)]
    names = [escaped(name) for name in table.column_names]
    widths = [
        max([len(name), *(pc.max(pc.utf8_length(cells[place])).as_py() for cells in blocks)])
        for place, name in enumerate(names)
    ]
    is_number = [_is_number(field.type) for field in table.schema]
    header = [[name] for name in names]
    for cells in [[pa.array(name) for name in header], *blocks]:
        aligned = [
            (pc.utf8_lpad if right else pc.utf8_rpad)(each, width)
            for each, width, right in zip(cells, widths, is_number, strict=True)
        ]
        yield _joined(aligned, separator="  ", end="\n")


def _blocks(table: MetricTable) -> Iterator[list[pa.Array]]:
    """Yields the columns of some lines at a time, the words as text."""
    for batch in table.combine_chunks().to_batches(max_chunksize=_BLOCK_LINES):
        yield [
            each.cast(pa.string()) if pa.types.is_dictionary(each.type) else each for each in batch.columns
        ]


def _as_text(column: pa.Array) -> pa.Array:
    """Returns each number as Python writes it, null where there is none."""
    text = column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        return text
    # Arrow writes 1.0 as 1, which a reader would take for an integer.
    is_integral = pc.and_(pc.equal(column, pc.trunc(column)), pc.is_finite(column))
    if not pc.any(is_integral).as_py():
        return text
    is_bare = pc.and_(is_integral, pc.invert(pc.match_substring(text, "e")))
    return pc.if_else(is_bare, pc.binary_join_element_wise(text, ".0", ""), text)


def _as_json(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):  # tasks, which need no escapes
        return pc.binary_join_element_wise('"', column, '"', "")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
    return pc.fill_null(_as_text(column), "null")


def _as_cells(column: pa.Array) -> pa.Array:
    """Returns what a person reads: six digits, and a dash for nothing."""
    if not pa.types.is_floating(column.type):
        return pc.fill_null(_as_text(column), "-")
    # The one thing that Arrow has no function for; the strings of one block live at a time.
    numbers: list[float] = np.asarray(pc.fill_null(column, 0.0)).tolist()
    cells = pa.array(list(map("%.6g".__mod__, numbers)))
    return cells if column.null_count == 0 else pc.if_else(column.is_valid(), cells, "-")


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _joined(cells: list[pa.Array], *, separator: str, start: str = "", end: str) -> bytes:
    """Returns the lines' text: the cells with `separator` in between, from `start` to `end`."""
    lines = pc.binary_join_element_wise(*cells, separator)
    lines = pc.binary_join_element_wise(start, lines, end, "")
    # The texts of an array lie one behind the other.
    offset, size = lines.offset, len(lines)
    _, offsets, text = lines.buffers()
    bounds = np.frombuffer(offsets, np.int32)[[offset, offset + size]]
    return bytes(memoryview(text)[bounds[0] : bounds[1]])
