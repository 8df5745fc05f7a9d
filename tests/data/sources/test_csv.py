"""from_csv: where rows begin, what becomes a tensor, and what is told when it cannot."""

from __future__ import annotations

import csv
import gzip
import io
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.data.sources import csv as csv_source
from raydist.data.sources.source import Source
from raydist.errors import DataError
from raydist.storage.filesystem import Storage
from tests.data.sources.test_parquet import rows


def write(folder: Path, text: str | bytes, name: str = "0.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def columns(source: Source) -> dict[str, list[Any]]:
    found = rows(source)
    return {field.name: array.tolist() for field, array in zip(source.fields, found, strict=True)}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows, and quoted texts, lie across what is read and what is grouped."""
    monkeypatch.setattr(csv_source, "READ_BYTES", 37)
    monkeypatch.setattr(csv_source, "GROUP_BYTES", 60)


def test_features_are_stacked_to_one_tensor_with_a_label(tmp_path: Path) -> None:
    write(tmp_path, "a,b,y,name\n" + "".join(f"{n},{n / 2},{n % 3},n{n}\n" for n in range(10)))
    source = data.from_csv(tmp_path, features=["b", "a"], label="y")
    x, y = rows(source)
    assert source.structure == (0, 1)
    assert [(field.shape, field.dtype) for field in source.fields] == [((2,), np.float32), ((), np.int64)]
    assert np.array_equal(x, np.stack([np.arange(10) / 2, np.arange(10)], 1))
    assert np.array_equal(y, np.arange(10) % 3)


def test_columns_have_the_types_of_their_values(tmp_path: Path) -> None:
    write(
        tmp_path, 'n,x,is,t,day,"q,r"\n1,0.5,true,ä,2020-01-31,"a, b"\n-2,3,false,"say ""x""",2021-02-01,\n'
    )
    source = data.from_csv(tmp_path)
    assert columns(source) == {
        "n": [1, -2],
        "x": [0.5, 3.0],
        "is": [True, False],
        "t": ["ä", 'say "x"'],
        "day": ["2020-01-31", "2021-02-01"],
        "q,r": ["a, b", ""],
    }
    assert {field.name: field.dtype for field in source.fields} == {
        **{"n": np.int64, "x": np.float64, "is": np.bool_, "t": object, "day": object, "q,r": object}
    }


def test_types_may_be_given(tmp_path: Path) -> None:
    write(tmp_path, "zip,n,m\n007,1,2\n")
    source = data.from_csv(tmp_path, types={"zip": "string", "n": pa.uint8(), "m": np.float32})
    assert columns(source) == {"zip": ["007"], "n": [1], "m": [2.0]}
    assert [field.dtype for field in source.fields] == [np.float32, np.uint8, object]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(12))
def test_quoted_line_ends_are_right_wherever_they_lie(tmp_path: Path, line_end: str, seed: int) -> None:
    """Python's csv writes, and tells, what is there."""
    draw = random.Random(seed)
    parts = ["a", '"', '""', ",", "\n", "\r\n", "\n\n", 'x"y', " ", "é"]
    texts = ["".join(draw.choices(parts, k=draw.randint(0, 6))) for _ in range(60)]
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=line_end)
    writer.writerow(["n", "t", "u"])
    for number, text in enumerate(texts):
        writer.writerow([number, text, texts[-1 - number]])
    content = file.getvalue() if seed % 2 else file.getvalue().removesuffix(line_end)
    write(tmp_path, content + line_end * (seed % 3 == 1))
    source = data.from_csv(tmp_path, types={"t": "string", "u": "string"})  # the first ones may be empty
    assert len(source.group_sizes) > 5
    assert columns(source) == {"n": list(range(60)), "t": texts, "u": texts[::-1]}


@pytest.mark.usefixtures("small_blocks")
def test_quotes_within_a_field_and_blank_lines_are_as_pyarrow_takes_them(tmp_path: Path) -> None:
    content = 'n,t\n\n1,5" pipe\n2,"a"b"c\n\r\n3,"x\n"\n\n\n' + "".join(f'{n},3" {n}\n\n' for n in range(40))
    path = write(tmp_path, content)
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    assert columns(data.from_csv(tmp_path)) == pyarrow.csv.read_csv(path, parse_options=options).to_pydict()


def test_one_column_of_digits_and_a_mark_of_byte_order(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbfn\r\n" + b"".join(b"%d\r\n" % (n % 10) for n in range(10_000)))
    source = data.from_csv(tmp_path)
    assert source.group_sizes.tolist() == [4096, 4096, 1808]
    assert columns(source) == {"n": [n % 10 for n in range(10_000)]}


def test_another_delimiter(tmp_path: Path) -> None:
    write(tmp_path, 'a;b\n1;"x;\ny"\n2;z\n')
    assert columns(data.from_csv(tmp_path, delimiter=";")) == {"a": [1, 2], "b": ["x;\ny", "z"]}


def test_defaults_stand_in_for_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "a,t,u\n1,,\n,x,\nNA,NA,v\n")
    source = data.from_csv(tmp_path, defaults={"a": -1, "t": "none"})
    assert columns(source) == {"a": [1, -1, -1], "t": ["none", "x", "NA"], "u": ["", "", "v"]}
    assert columns(pickle.loads(pickle.dumps(source))) == columns(source)


def test_folders_files_and_orders_of_columns(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n1,2\n", "in/0.csv")
    write(tmp_path, "b,a\n4,3.5\n", "in/deeper/1.CSV")
    write(tmp_path, "a,b\n", "in/2.csv")
    write(tmp_path, "no data", "in/readme.txt")
    last = write(tmp_path, "a,b\n5,6\n", "data.txt")
    found = columns(data.from_csv([tmp_path / "in", last]))
    assert found == {"a": [1.0, 3.5, 5.0], "b": [2, 4, 6]}


def test_order_is_that_of_parquet_and_a_run_resumes_in_it(tmp_path: Path) -> None:
    table = pa.table({"n": np.arange(10_000), "x": np.arange(10_000) / 8})
    for number in range(3):
        part = table.slice(number * 3333, 3333 + (number == 2))
        pyarrow.csv.write_csv(part, write(tmp_path, "", f"csv/{number}.csv"))
        pq.write_table(part, write(tmp_path, "", f"pq/{number}.parquet"), row_group_size=4096)
    options: dict[str, Any] = {"columns": ["n", "x"]}
    recipe: dict[str, Any] = {"global_batch_size": 64, "seed": 5, "window_mb": 0.02}
    one = data.from_csv(tmp_path / "csv", **options).batches(**recipe)
    other = data.from_parquet(tmp_path / "pq", **options).batches(**recipe)
    reader, expected = one.reader(), other.reader()
    seen = []
    for step in range(len(one)):
        size = one.steps.size_of(step)
        blocks = [each.block(step, 1, 0, size) for each in (reader, expected)]
        for found, wanted in zip(*blocks, strict=True):
            assert np.array_equal(found, wanted)
        seen += blocks[0][0].reshape(-1).tolist()
    assert sorted(seen) == list(range(10_000))
    resumed = pickle.loads(pickle.dumps(one)).reader().block(100, 1, 16, 32)[0]
    assert resumed.tolist() == [seen[100 * 64 + 16 : 100 * 64 + 32]]


def test_s3_is_read_and_its_index_is_kept(s3_uri: str, index_folder: Path) -> None:
    storage = Storage.open(s3_uri)
    for number in range(2):
        text = "n,t\n" + "".join(f'{n},"{n}\n"\n' for n in range(20 * number, 20 * number + 20))
        storage.write_bytes(f"train/{number}.csv", text.encode())
    source = data.from_csv(f"{s3_uri}/train")
    assert columns(source) == {"n": list(range(40)), "t": [f"{n}\n" for n in range(40)]}
    assert len(list(index_folder.rglob("csv-groups-*/*.npy"))) == 2
    assert columns(data.from_csv(f"{s3_uri}/train")) == columns(source)
    assert columns(pickle.loads(pickle.dumps(source))) == columns(source)
    storage.delete("train/1.csv")
    with pytest.raises(DataError, match=r"train/1\.csv is gone since the run began"):
        rows(source)


def test_window_is_sized_by_the_texts_in_it(tmp_path: Path) -> None:
    write(tmp_path, "t,n\n" + "".join(f"{'x' * 5000},{n}\n" for n in range(100)))
    assert 5_000 < data.from_csv(tmp_path).num_bytes < 5_100
    assert data.from_csv(tmp_path, columns=["n"]).num_bytes == 8


# What is in the files, how they are read, and what is said.
BAD: dict[str, tuple[list[str | bytes], dict[str, Any], str]] = {
    "missing column": (
        ["price,y\n1,2\n"],
        {"features": ["prise"]},
        r"0\.csv has no column prise; did you mean price\?",
    ),
    "missing in one file": (
        ["a,b\n1,2\n", "a,c\n1,2\n"],
        {"features": ["a"]},
        r"1\.csv has no column b, as .*0\.csv has; write all with the same columns",
    ),
    "more in one file": (
        ["a\n1\n", "a,c\n1,2\n"],
        {},
        r"0\.csv has no column c, as .*1\.csv has; write all with the same columns",
    ),
    "other type in one file": (
        ["a\n1\n", "a\nx\n"],
        {},
        r"column a is string in .*1\.csv, and int64 in files before it; correct it, or give types=\{'a': …\}",
    ),
    "empty": (["a\n1\n", ""], {}, r"1\.csv is empty; write a line with the names of its columns, and rows"),
    "blank lines alone": (["\n\r\n\n"], {}, r"0\.csv is empty"),
    "no rows": (["a,b\n"], {}, "from_csv found no rows in 1 files"),
    "no values": (
        ["a,b\n1,\n"],
        {},
        r"column b of .*0\.csv has no values in the first rows, which tell its type; give types=\{'b': …\}",
    ),
    "no header": (
        ["5.1,3.5,iris\n4.9,3.0,iris\n"],
        {},
        r"0\.csv begins with values \(5\.1, 3\.5, iris\), not with names; write the names of the columns",
    ),
    "no header of integers": (["6,148,72\n1,85,66\n"], {}, "begins with values"),
    "twice": (["a,a\n1,2\n"], {}, r"0\.csv has two columns 'a'; is its first line that of the names\?"),
    "compressed": ([gzip.compress(b"a\n1\n")], {}, r"0\.csv is compressed, and .*; decompress it"),
    "not text": ([b"\xff\xfea\x00\n\x00"], {}, r"0\.csv does not begin with text in UTF-8; write it so"),
    "open quote": (
        ['a,t\n1,"x\ny"\n2,"z\n3,w\n'],
        {},
        r"line 4 of .*0\.csv has a quote that is not closed; close it, or double it in text",
    ),
    "lone carriage returns": (
        ["a\r1\r2\r"],
        {},
        r"0\.csv has a row, from line 1 on, that ends with \\r alone",
    ),
    "row of other length": (
        ["a,b\n\n1,2\n3\n"],
        {},
        r"line 4 of .*0\.csv is not a row: Expected 2 columns, got 1: 3; put text with ',' or line ends",
    ),
    "stacked text": (
        ["a,t\n1,x\n"],
        {"features": ["a", "t"], "types": {"t": "string"}},
        "column t is string and cannot be stacked",
    ),
    "a feature that is not a number": (
        ["a,b\n1,2\n3,?\n"],
        {"features": ["a", "b"]},
        r"line 3 of .*0\.csv has '\?' in column b, which is double; correct it, or give types=\{'b': …\}",
    ),
    "unknown type": (
        ["a\n1\n"],
        {"types": {"a": "number"}},
        "types has 'number' for column a; give a type of",
    ),
    "type of a column that is not there": (
        ["a\n1\n"],
        {"types": {"b": "int64"}},
        "types names column b, which is not there; write one of a",
    ),
    "other delimiter": (
        ["a;b\n1;2\n"],
        {},
        r"has one column, 'a;b', with ',' as delimiter; write it with commas, or give from_csv delimiter=';'",
    ),
    "delimiter": (["a\n1\n"], {"delimiter": ", "}, "delimiter is ', '; give one character"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_before_anything_is_read(tmp_path: Path, case: str) -> None:
    contents, options, message = BAD[case]
    for number, content in enumerate(contents):
        write(tmp_path, content, f"{number}.csv")
    with pytest.raises(DataError, match=message):
        data.from_csv(tmp_path, **options)


BAD_WHEN_READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "other type": (
        'a,t\n1,"x\ny"\n\n0.5,z\n',
        {"types": {"a": "int64"}},
        r"line 5 of .*0\.csv has '0\.5' in column a, which is int64; correct it, or give types=\{'a': …\}",
    ),
    "out of range": (
        "a\n1\n300\n",
        {"types": {"a": "uint8"}},
        r"line 3 of .* has '300' in column a, which is u",
    ),
    "missing number": (
        'a,t\n1,"x\ny"\n\n,z\n',
        {},
        r"column a has 1 null in line 5 of .*0\.csv; give defaults=\{'a': …\}, or write the file without",
    ),
    "null": ("a\n1\nnull\n", {"columns": ["a"]}, r"column a has 1 null in line 3 of"),
}


@pytest.mark.parametrize("case", BAD_WHEN_READ)
def test_bad_value_is_told_with_its_line(tmp_path: Path, case: str) -> None:
    content, options, message = BAD_WHEN_READ[case]
    write(tmp_path, content)
    source = data.from_csv(tmp_path, **options)
    with pytest.raises(DataError, match=message):
        rows(source)


def test_value_after_the_first_block_does_not_change_its_type(tmp_path: Path) -> None:
    write(tmp_path, "a\n" + "1\n" * 5000 + "0.5\n")
    source = data.from_csv(tmp_path)
    assert source.read([Piece(0, 0, 4096)])[0].dtype == np.int64
    with pytest.raises(DataError, match=r"line 5002 of .* has '0\.5' in column a, which is int64"):
        rows(source)
    assert columns(data.from_csv(tmp_path, types={"a": "float32"}))["a"][-2:] == [1.0, 0.5]


def test_compressed_file_in_a_folder_is_not_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a\n1\n")
    write(tmp_path, gzip.compress(b"a\n1\n"), "1.csv.gz")
    with pytest.raises(DataError, match=r"1\.csv\.gz is compressed"):
        data.from_csv(tmp_path)


def test_file_that_changes_under_way(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n1\n2\n")
    source = data.from_csv(tmp_path)
    path.write_text("a\n1\n3\n")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 5 * 10**9))
    with pytest.raises(DataError, match=r"input file .*0\.csv has changed since it was opened"):
        rows(source)
    assert columns(data.from_csv(tmp_path)) == {"a": [1, 3]}  # its index, too, is another one
