"""CSV, JSON and text say what the table has, block by block."""

from __future__ import annotations

import csv
import io
import json
import math
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from raydist.cli.screen import output
from raydist.metrics.formats import csv_blocks, json_blocks, text_blocks

TABLE = pa.table(
    {
        "step": [1, 2, 1000],
        "epoch": pa.array([None, 1, 2], pa.int32()),
        "task": pa.array(["worker/0", "worker/10", "chief/0"]).dictionary_encode(),
        'lo,ss "é"': [0.1, 1.0, None],
        "rate": [math.nan, -math.inf, 1e-7],
        "size": [123456789.0, 1e22, 3.25],
    }
)
EMPTY = TABLE.slice(0, 0)


def text_of(blocks: Iterable[bytes]) -> str:
    return b"".join(blocks).decode()


def lines_of(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(line.values()) for line in table.to_pylist()]


def test_csv_can_be_read_by_others() -> None:
    header, *lines = csv.reader(io.StringIO(text_of(csv_blocks(TABLE))))
    assert header == TABLE.column_names
    assert lines == [
        ["1", "", "worker/0", "0.1", "nan", "123456789.0"],
        ["2", "1", "worker/10", "1.0", "-inf", "1e+22"],
        ["1000", "2", "chief/0", "", "1e-7", "3.25"],
    ]


def test_json_is_one_object_with_null_for_what_is_no_number() -> None:
    text = text_of(json_blocks({"a": TABLE}))
    assert json.loads(text, parse_constant=pytest.fail) == {
        "run": "a",
        "metrics": [
            {"step": 1, "epoch": None, "task": "worker/0", 'lo,ss "é"': 0.1, "rate": None, "size": 123456789},
            {"step": 2, "epoch": 1, "task": "worker/10", 'lo,ss "é"': 1.0, "rate": None, "size": 1e22},
            {"step": 1000, "epoch": 2, "task": "chief/0", 'lo,ss "é"': None, "rate": 1e-7, "size": 3.25},
        ],
    }
    assert '"lo,ss \\"é\\"": 1.0' in text  # a float stays one


def test_text_is_what_print_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(TABLE.column_names, lines_of(TABLE))
    assert text_of(text_blocks(TABLE)) == capsys.readouterr().out


def test_table_without_lines_is_a_header_and_an_empty_list() -> None:
    assert text_of(csv_blocks(EMPTY)) == 'step,epoch,task,"lo,ss ""é""",rate,size\n'
    assert json.loads(text_of(json_blocks({"a": EMPTY}))) == {"run": "a", "metrics": []}
    assert len(text_of(text_blocks(EMPTY)).splitlines()) == 1


LONG = pa.table(
    {
        "step": range(100_000),
        "epoch": pa.array([None] * 100_000, pa.int32()),
        "task": pa.array(["worker/0"] * 100_000).dictionary_encode(),
        "loss": [step / 7 for step in range(100_000)],
    }
)


def test_long_table_is_printed_whole() -> None:
    [_, *lines] = csv.reader(io.StringIO(text_of(csv_blocks(LONG))))
    assert [float(line[3]) for line in lines] == LONG["loss"].to_pylist()
    assert json.loads(text_of(json_blocks({"a": LONG})))["metrics"] == LONG.to_pylist()
    assert [line.split()[0] for line in text_of(text_blocks(LONG)).splitlines()[1:]] == list(
        map(str, range(100_000))
    )


@pytest.mark.parametrize("blocks", [csv_blocks, lambda table: json_blocks({"a": table}), text_blocks])
def test_a_long_table_is_never_python_objects_as_a_whole(blocks: Any) -> None:
    tracemalloc.start()
    try:
        sizes = [len(block) for block in blocks(LONG)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sizes) >= 4
    assert peak_bytes < 10_000_000  # a string and a float for each value would take more than twice as much


def test_first_lines_are_there_before_the_next_are_made() -> None:
    made = iter(csv_blocks(LONG))
    assert next(made) == b"step,epoch,task,loss\n"
    assert 1 < next(made).count(b"\n") < 50_000
