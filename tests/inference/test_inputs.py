"""Parquet and CSV as a model's inputs: which columns it gets, and what does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.cli.commands import models
from raydist.errors import DataError
from raydist.inference import formats, inputs
from raydist.inference.inputs import Batch, open_input
from raydist.inference.parts import cut
from raydist.inference.served_model import as_column
from raydist.inference.signature import ModelInput
from tests.support.image_files import png


def wanted(name: str, shape: tuple[int | None, ...], dtype: Any = np.float32) -> ModelInput:
    return ModelInput(name=name, shape=shape, dtype=np.dtype(dtype))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(2):
        numbers = np.arange(10 * file, 10 * file + 10)
        columns = {"id": numbers, "a": numbers / 2, "b": -numbers.astype("int32")}
        lists = pa.array([[one, one + 1] for one in numbers.tolist()])
        table = pa.table({**columns, "pair": lists, "name": [f"n{one}" for one in numbers.tolist()]})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=4)
    return tmp_path


def read(folder: Path, *inputs: ModelInput, size: int = 3, **options: Any) -> list[Batch]:
    opened = open_input(str(folder), **{"format": None, "features": None, "copy": None, **options})
    parts = cut(opened.unit_rows, opened.unit_files, most_rows=8)
    assert [part.num_rows for part in parts] == [8, 2, 8, 2]
    return [batch for part in parts for batch in opened.batches(part, inputs, size=size)]


@pytest.fixture
def csv_folder(tmp_path: Path) -> Path:
    for file in range(2):
        lines = [f'{n},00{n},{n},{n / 2},"n,{n}",' for n in range(10 * file, 10 * file + 10)]
        (tmp_path / f"{file}.csv").write_text("\n".join(["n,zip,whole,half,name,none", *lines]))
    return tmp_path


def read_csv(folder: Path, *inputs: ModelInput, **options: Any) -> list[Batch]:
    opened = open_input(str(folder), **{"format": None, "features": None, "copy": None, **options})
    parts = cut(opened.unit_rows, opened.unit_files, most_rows=opened.part_rows, to=opened.to)
    assert [(part.name, part.num_rows) for part in parts] == [
        (f"part-00000{number}.{opened.to}", 10) for number in range(2)
    ]
    return [batch for part in parts for batch in opened.batches(part, inputs, size=4)]


def test_columns_of_csv_have_the_types_of_the_models_inputs(csv_folder: Path) -> None:
    inputs = (
        wanted("half", ()),
        wanted("n", (), np.int64),
        wanted("whole", (1,)),
        wanted("zip", (1,), object),
    )
    batches = read_csv(csv_folder, *inputs)
    assert [len(one.kept) for one in batches] == [4, 4, 2] * 2
    values = {name: np.concatenate([one.values[name] for one in batches]) for name in batches[0].values}
    assert values["whole"].dtype == values["half"].dtype == np.float32
    assert values["whole"].tolist() == [[n] for n in range(20)]
    assert values["half"].tolist() == [n / 2 for n in range(20)]
    assert values["zip"].tolist() == [[f"00{n}"] for n in range(20)]
    assert values["n"].tolist() == list(range(20))
    assert batches[0].kept.column_names == ["name", "none"]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_columns_of_csv_are_cut_at_the_delimiter_that_is_given(csv_folder: Path, delimiter: str) -> None:
    inputs = (wanted("half", ()), wanted("n", (), np.int64))
    before = read_csv(csv_folder, *inputs)
    for path in csv_folder.iterdir():
        # The text in quotes keeps its commas.
        path.write_text(re.sub(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', delimiter, path.read_text()))
    batches = read_csv(csv_folder, *inputs, delimiter=delimiter)
    assert [one.kept for one in batches] == [one.kept for one in before]
    for batch, other in zip(batches, before, strict=True):
        np.testing.assert_array_equal(batch.values["half"], other.values["half"])


@pytest.mark.parametrize(
    ("to", "zips"), [("csv", ["000", "001"]), (None, ["000", "001"]), ("parquet", [0, 1])]
)
def test_columns_that_are_copied_to_csv_stay_as_they_are_written(
    csv_folder: Path, to: str | None, zips: list[Any]
) -> None:
    features = ("half", "whole")
    batches = read_csv(csv_folder, wanted("x", (2,)), features=features, copy=("zip", "none"), to=to)
    assert batches[0].kept.slice(0, 2).to_pydict() == {"zip": zips, "none": ["", ""]}
    x = np.concatenate([one.values["x"] for one in batches])
    np.testing.assert_array_equal(x, np.stack([np.arange(20) / 2, np.arange(20)], axis=-1))


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        ("1,1,,1,n,", "whole", r"column whole has 1 null in line 12 of .*1\.csv"),
        ("1,1,x,1,n,", "whole", r"line 12 of .*1\.csv has 'x' in column whole, which is double; correct it$"),
    ],
)
def test_bad_row_of_csv_is_told_with_its_line(csv_folder: Path, line: str, name: str, message: str) -> None:
    with (csv_folder / "1.csv").open("a") as file:
        file.write(f"\n{line}\n")
    opened = open_input(str(csv_folder), format="csv", features=None, copy=None)
    [_, part] = cut(opened.unit_rows, opened.unit_files, most_rows=99)
    with pytest.raises(DataError, match=message):
        list(opened.batches(part, [wanted(name, ())], size=20))


def test_features_are_stacked_and_the_others_kept(folder: Path) -> None:
    batches = read(folder, wanted("x", (2,)), features=("b", "a"))
    assert [one.kept.column_names for one in batches] == [["id", "pair", "name"]] * len(batches)
    ids = np.concatenate([one.kept["id"].to_numpy() for one in batches])
    np.testing.assert_array_equal(ids, np.arange(20))
    x = np.concatenate([one.values["x"] for one in batches])
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, np.stack([-ids, ids / 2], axis=-1))


def test_inputs_are_the_columns_of_their_names(folder: Path) -> None:
    inputs = (
        wanted("a", (1,)),
        wanted("b", (), np.int64),
        wanted("name", (1,), object),
        wanted("pair", (2,)),
    )
    batches = read(folder, *inputs, copy=("id", "a"))
    first = batches[0]
    assert first.kept.column_names == ["id", "a"]
    shapes = {name: (value.shape, value.dtype.name) for name, value in first.values.items()}
    assert shapes == {
        "a": ((3, 1), "float32"),
        "b": ((3,), "int64"),
        "name": ((3, 1), "object"),
        "pair": ((3, 2), "float32"),
    }


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        ([wanted("x", (2,))], {}, "no column x, an input of the model (x float32[2]); name the columns that"),
        ([wanted("a", ()), wanted("x", ())], {}, "no column x, an input of the model (a float32[], x float"),
        ([wanted("a", ()), wanted("b", ())], {"features": ("a",)}, "--features is for a model of one input"),
        ([wanted("x", (3,))], {"features": ("a", "b")}, "are float32[2] in"),
        ([wanted("a", (), np.int32)], {}, "for input a int32[] of the model are float64[]"),
        ([wanted("a", (), object)], {}, "for input a string[] of the model are float64[]"),
        ([wanted("x", (2,), np.int64)], {"features": ("b", "a")}, "column a of "),
        ([wanted("x", (2,), object)], {"features": ("a", "b")}, "--features is for a model of numbers"),
        ([wanted("x", (2,))], {"features": ("a", "bb")}, "no column bb; "),
        ([wanted("a", ())], {"copy": ("ident",)}, "no column ident, which --copy names"),
    ],
    ids=str,
)
def test_column_that_does_not_fit_is_one_sentence(
    folder: Path, inputs: list[ModelInput], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        read(folder, *inputs, **options)


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        ([], {}, "there is no such file, or folder with files"),
        (["a.txt"], {}, "tell no format; give --format"),
        (["a.parquet"], {}, "cannot read the Parquet of "),
        (["a.png"], {"features": ("a",)}, "--features names columns, and "),
        (["a.parquet"], {"delimiter": ";"}, "--delimiter is for CSV, and "),
        (["a.csv"], {"delimiter": ";;"}, "delimiter is ';;'; give one character"),
        (["a.csv"], {"delimiter": ""}, "delimiter is ''; give one character"),
        (["a.png"], {"copy": ("a",)}, "--copy names columns of Parquet or CSV, and "),
        (["a.csv"], {}, "its files have no rows"),
        (["a.csv.gz"], {}, "a.csv.gz is compressed, and cannot be read from the middle; decompress it"),
    ],
    ids=str,
)
def test_data_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, names: list[str], options: dict[str, Any], sentence: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("no data")
    with pytest.raises(DataError, match=re.escape(sentence)):
        open_input(str(tmp_path), **{"format": None, "features": None, "copy": None, **options})


def test_number_that_the_models_type_cannot_hold_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2**31]}), tmp_path / "0.parquet")
    opened = open_input(str(tmp_path), format=None, features=None, copy=None)
    [part] = cut(opened.unit_rows, opened.unit_files, most_rows=opened.part_rows)
    with pytest.raises(DataError, match=r"a value for input .*id int32.* is 2147483648, which int32 cannot"):
        list(opened.batches(part, [wanted("id", (), np.int32)], size=3))
    [batch] = opened.batches(part, [wanted("id", (), np.int64)], size=3)
    assert batch.values["id"].tolist() == [1, 2**31]


@pytest.mark.slow
def test_pictures_that_came_after_the_names_were_listed_are_told(tmp_path: Path) -> None:
    for name in ("b.png", "d.png"):
        (tmp_path / name).write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    opened = open_input(str(tmp_path), format="images", features=None, copy=None)
    (tmp_path / "a.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    [part] = cut(opened.unit_rows, opened.unit_files, most_rows=opened.part_rows)
    with pytest.raises(DataError, match="have changed since the predictions began; begin again"):
        list(opened.batches(part, [wanted("image", (4, 4, 3))], size=3))


def test_outputs_become_scalars_or_lists() -> None:
    assert as_column(np.ones((2, 1), np.float32)).to_pylist() == [1.0, 1.0]
    nested = as_column(np.arange(12).reshape(2, 2, 3))
    assert nested.type == pa.list_(pa.list_(pa.int64(), 3), 2)
    assert nested.to_pylist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_command_line_names_the_formats_that_there_are() -> None:
    assert set(models._DATA_FORMATS) == set(inputs.FORMATS)
    assert set(models._MODEL_FORMATS) == set(formats.FORMATS)
