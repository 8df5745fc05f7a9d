"""raydist.data in TensorFlow: what a batch is as tensors, on one device, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Cluster, run_function

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What one process has found; the import of TensorFlow is the cost."""
    target = "tests.support.pipeline_functions:checked"
    environ = {"RAYDIST_CACHE": str(folder / "index")}
    [task] = run_function(target, Cluster(), folder=str(folder), environ=environ)
    return task.values


def test_parts_of_input_pipelines_make_up_the_global_batches(found: dict[str, Any]) -> None:
    found = found["parts"]
    assert found["wrong"] == []
    assert found["static"] == [12]
    assert found["beyond"] == "start_step is 7, and the data end after 6 steps"
    assert found["negative"] == "start_step is -1; it has to be an int of at least 0"
    assert found["threads"] == 0
    assert found["rows_read"] == 36  # nothing is read beyond the last step
    assert found["is_autotuned"] is False  # else the end of an iterator may take seconds


def test_batches_have_one_epoch_outside_of_training(found: dict[str, Any]) -> None:
    beyond = "start_step is 4, and the data end after 3 steps; give batches(epochs=…) for more than one epoch"
    expected = {"len": 3, "iterated": 3, "dataset": 3, "beyond": beyond}
    assert found["parts"]["by default"] == expected
    assert found["parts"]["two epochs"] == [6, 6]


def test_columns_and_arrays_are_tensors_of_their_types(found: dict[str, Any]) -> None:
    found = found["tensors"]
    assert found["arrays"] == [
        {
            "unicode": ["string", ["ä", "bb"]],
            "bytes": ["string", ["x", "yy"]],
            "truth": ["bool", [True, False]],
        },
        [["string", ["ü", "z"]], ["float16", [0.5, 1.5]]],
    ]
    assert found["parquet"] == [
        {
            "t": ["string", ["ö", "b"]],
            "large": ["string", ["l", "m"]],
            "raw": ["string", ["r", "s"]],
            "kind": ["string", ["k", "l"]],
            "v": ["int64", [[1, 2], [3, 4]]],
            "truth": ["bool", [True, False]],
            "half": ["float16", [0.5, 1.5]],
        },
        ["int64", [7, 8]],
    ]
    assert found["maps"] == [["float16", [1.0, 3.0]], ["bool", [True, False]]]
    assert found["map of a dict"] == ["int64", [1, 2]]
    assert found["cached"]


def test_records_and_images_are_decoded(found: dict[str, Any], folder: Path) -> None:
    found = found["records_and_images"]
    assert found["records"] == [
        [
            {"n": ["int64", [0, 1, 20, 3]], "pair": ["int64", [[0, 1], [1, 2], [20, 21], [3, 4]]]},
            ["string", ["0", "1", "20", "3"]],
        ],
        [{"n": ["int64", [40, 5]], "pair": ["int64", [[40, 41], [5, 6]]]}, ["string", ["40", "5"]]],
    ]
    assert found["records again"]
    assert found["parts of records"] == [[2, 1], [1, 0], [1, 0]]
    assert found["images"] == [[100, 101], [2, 4, 6, 3], "uint8", ["int64", [0, 1]]]
    assert found["small"] == [[2, 2, 3, 3], [2, 2, 3, 3]]
    assert found["gray"] == [3, 2, 3, 1]
    assert found["stripes"] == {"antialias=False": True, "antialias=True": True, "differ": True}
    assert found["unequal"] == (
        f"DataError: image {folder}/images/bee/1.png has the shape [5 6 3], and not [4, 6, 3] as the first "
        "one; give from_images(size=(height, width))"
    )


def test_records_without_one_shape_are_named(found: dict[str, Any], folder: Path) -> None:
    found = found["uneven_records"]
    where = f"DataError: parse makes of the record at byte 28 of {folder}/uneven/b a tensor of the shape"
    remedy = "as another one of its batch; give all one shape in parse, by padding or cutting"
    assert found["ragged dense"] == f"{where} [4], and not [3] {remedy}"
    assert found["other rank"] == f"{where} [3 3], and not [3] {remedy}"
    assert found["even"] == [[5, 3], [5]]
    returns = "DataError: parse of from_tfrecord returns a"
    assert found["sparse"].startswith(f"{returns} SparseTensor of int64 (None,); return tensors of one shape")
    assert found["ragged"].startswith(f"{returns} RaggedTensor of int64 (1, None); return tensors of one")
    assert found["none"].startswith(f"{returns} NoneType; return tensors of one shape")


def test_bad_parquet_is_a_data_error_and_ends(found: dict[str, Any], folder: Path) -> None:
    found = found["bad_parquet"]
    where = f"row group 2 of {folder}"
    errors = found["errors"]
    null = f"column c has 1 null in {where}/null.parquet; give defaults={{'c': …}}, or write the file without"
    assert errors["null"] == f"DataError: {null}"
    assert f"column c has lists of 1, 2 values in {where}/ragged.parquet; every row needs" in errors["ragged"]
    assert f"DataError: input file {folder}/gone.parquet is gone since the run began" in errors["gone"]
    assert found["threads"] == 0
