"""What a SavedModel takes, without TensorFlow; and data that do not fit it, told before anything starts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.errors import DataError
from raydist.inference.predict import Prediction
from raydist.inference.signature import ModelInput, Signature, read_signature
from raydist.storage.run_storage import open_run
from tests.support.image_files import png

pytestmark = pytest.mark.slow

# Exports models of many kinds, and prints what TensorFlow says that they take and return.
EXPORT = """
import json, sys
from pathlib import Path
import keras
import tensorflow as tf
from raydist.inference.served_model import ServedModel

folder = Path(sys.argv[1])

class Module(tf.Module):
    @tf.function(input_signature=[
        tf.TensorSpec([None, None, 2], tf.string, name="words"),
        tf.TensorSpec([None], tf.bool, name="flag"),
        tf.TensorSpec([None, 3], tf.uint8, name="small"),
        tf.TensorSpec([None, 3], tf.float16, name="half"),
    ])
    def call(self, words, flag, small, half):
        return {"b": flag, "a": small, "c": half}

class Other(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.complex64, name="x")])
    def call(self, x):
        return x

x = keras.Input((4,), name="x")
keras.Model(x, keras.layers.Dense(3)(x)).export(folder / "dense", verbose=False)
image = keras.Input((None, 5, 3), name="image")
number = keras.Input((), dtype="int64", name="number")
keras.Model([image, number], [keras.layers.Flatten()(number[:, None]), image]).export(
    folder / "two", verbose=False
)
for name, module in (("module", Module()), ("other", Other())):
    tf.saved_model.save(module, str(folder / name), signatures={"serving_default": module.call})
module = Module()
tf.saved_model.save(module, str(folder / "none"), signatures={"other": module.call})
with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
    writer.write(b"a record")
told = {}
for name in ("dense", "two", "module"):
    served = ServedModel(folder / name)
    told[name] = [[str(one) for one in served.inputs], sorted(served._call.structured_outputs)]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, "-c", EXPORT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def signature(folder: Path, name: str) -> Signature | None:
    return read_signature((folder / name / "saved_model.pb").read_bytes())


@pytest.mark.parametrize("name", ["dense", "two", "module"])
def test_signature_is_what_tensorflow_says(exported: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, told = exported
    found = signature(folder, name)
    assert [[str(one) for one in found.inputs], sorted(found.outputs)] == told[name]


def test_sizes_that_vary_are_none(exported: tuple[Path, dict[str, Any]]) -> None:
    found = signature(exported[0], "two")
    assert found.inputs == (
        ModelInput(name="image", shape=(None, 5, 3), dtype=np.dtype(np.float32)),
        ModelInput(name="number", shape=(), dtype=np.dtype(np.int64)),
    )


@pytest.mark.parametrize("name", ["other", "none"])
def test_type_that_numpy_columns_lack_and_no_signature_are_unknown(
    exported: tuple[Path, dict[str, Any]], name: str
) -> None:
    assert signature(exported[0], name) is None


def test_damaged_file_is_unknown(exported: tuple[Path, dict[str, Any]]) -> None:
    whole = (exported[0] / "dense/saved_model.pb").read_bytes()
    found = read_signature(whole)
    assert found is not None
    # Cut off between fields of the file itself, it has the signature or has it not.
    told = {read_signature(whole[:size]) for size in range(0, len(whole), 7)}
    assert told <= {None, found}
    assert None in told


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 10**6,  # a number that does not end
        b"\x2a\x09\x08\xff\xff\xff\xff\xff\xff\x3f\x10",  # a number in the place of a name
        b"\x08\x00" * 10**7,
    ],
    ids=["endless number", "number as name", "many fields"],
)
def test_message_of_somebody_who_wants_to_do_harm_is_unknown(message: bytes) -> None:
    begun_s = time.process_time()
    size = len(message)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    assert read_signature(b"\x12" + length + message) is None
    assert time.process_time() - begun_s < 1


def table() -> pa.Table:
    numbers = np.arange(6.0)
    quads = pa.FixedSizeListArray.from_arrays(np.arange(24.0, dtype="float32"), 4)
    pairs = pa.FixedSizeListArray.from_arrays(np.arange(12.0, dtype="float32"), 2)
    columns = {"a": numbers, "b": numbers, "c": numbers, "d": numbers, "quad": quads, "pair": pairs}
    return pa.table({**columns, "name": [f"n{one}" for one in range(6)]})


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({}, {}, "has no column x, an input of the model (x float32[4]); name the columns"),
        ({}, {"features": ("a", "b", "c", "e")}, "no column e"),
        ({}, {"features": ("a", "b", "c")}, "for input x float32[4] of the model are float32[3]"),
        ({}, {"features": ("a", "b", "c", "name")}, "name"),
        ({"x": "pair"}, {}, "for input x float32[4] of the model are float32[2]"),
        ({"x": "name"}, {}, "for input x float32[4] of the model are string[]"),
        ({"x": "quad", "prediction": "a"}, {}, "the data have a column prediction already"),
        ({"x": "quad"}, {"copy": ("ident",)}, "has no column ident, which --copy names"),
    ],
    ids=str,
)
def test_parquet_that_does_not_fit_is_told_before_ray_is_asked(
    exported: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    columns: dict[str, str],
    options: dict[str, Any],
    sentence: str,
) -> None:
    whole = table()
    for name, source in columns.items():
        whole = whole.append_column(name, whole[source])
    pq.write_table(whole, tmp_path / "a.pq")
    prediction = predicting(exported[0] / "dense", tmp_path, **options)
    with pytest.raises(DataError, match=re.escape(sentence)):
        prediction.execute()
    assert not (tmp_path / "out").exists()


def predicting(model: Path, folder: Path, **options: Any) -> Prediction:
    """Returns a prediction by a run that has the model; its Ray does not exist."""
    export = folder / "runs/r/export"
    shutil.copytree(model, export / "saved_model")
    run = open_run(str(folder / "runs"), run="r")
    given = {"data": str(folder / "a.pq"), "out": str(folder / "out"), **options}
    return Prediction(run=run, address="127.0.0.1:1", **given)


def test_images_and_records_for_another_kind_of_model_are_told_before_ray_is_asked(
    exported: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    for model, data, sentence in (
        ("dense", tmp_path / "a.png", "the model has x float32[4], and no single input of pictures"),
        ("two", exported[0] / "a.tfrecord", "input image float32[None, 5, 3] of the model has no fixed size"),
    ):
        prediction = predicting(exported[0] / model, tmp_path / model, data=str(data))
        with pytest.raises(DataError, match=re.escape(sentence)):
            prediction.execute()
        assert not (tmp_path / model / "out").exists()
