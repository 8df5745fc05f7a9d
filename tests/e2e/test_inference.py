"""`raydist predict` and `export`: each row once, and the outputs of `model.predict`."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.storage.filesystem import Storage
from tests.e2e.conftest import Ended, RunningRay, start_raydist, started_ray
from tests.support.object_store import new_bucket, s3_environ, s3_server
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.slow

JOB = """
import numpy as np
import tensorflow as tf

import raydist


@raydist.job(workers=1, params={"kind": "numbers"})
def train(ctx: raydist.TrainContext):
    rng = np.random.default_rng(0)
    layers = tf.keras.layers
    with ctx.strategy.scope():
        if ctx.params["kind"] == "numbers":
            shape = (4,)
            inner = [layers.Dense(8, activation="relu")]
        else:
            shape = (6, 5, 3)
            inner = [layers.Rescaling(1 / 255), layers.Conv2D(3, 3), layers.Flatten()]
        model = tf.keras.Sequential([tf.keras.Input(shape, name="x"), *inner, layers.Dense(3)])
        model.compile("adam", "mse")
    x = rng.normal(size=(32, *shape)).astype("float32")
    y = rng.normal(size=(32, 3)).astype("float32")
    ctx.fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(16), epochs=1)
"""
# One process, which knows nothing of raydist.
PREDICT = """
import sys
import keras
import numpy as np
for kind in ("numbers", "images"):
    model = keras.models.load_model(f"{sys.argv[1]}/raydist_runs/{kind}/export/model.keras")
    np.save(f"{kind}.npy", model.predict(np.load(f"{sys.argv[1]}/{kind}.npy"), verbose=0))
"""
# Writes what only TensorFlow writes.
WRITE = """
import sys
import numpy as np
import tensorflow as tf
kind, source, target = sys.argv[1:]
values = np.load(source)
if kind == "images":
    for number, image in enumerate(values):
        tf.io.write_file(f"{target}/{number:04d}.png", tf.io.encode_png(image.astype("uint8")))
else:
    for file, part in enumerate(np.array_split(values[:501], 2)):
        with tf.io.TFRecordWriter(f"{target}/{file}.tfrecord") as writer:
            for row in part:
                x = tf.train.Feature(float_list=tf.train.FloatList(value=row))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
                features = tf.train.Features(feature={"x": x, "label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())
"""
ROWS, FILES = 24000, 12
PATIENCE_S = 180 * PATIENCE


def program(text: str, *arguments: str, cwd: Path | None = None) -> None:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", text, *arguments]
    subprocess.run(command, check=True, env=environ, timeout=PATIENCE_S, cwd=cwd)


class Trained(NamedTuple):
    """Runs that have ended, examples for their models, and what the models predict for these."""

    folder: Path
    values: dict[str, np.ndarray[Any, Any]]
    predicted: dict[str, np.ndarray[Any, Any]]

    def copy_to(self, folder: Path) -> Path:
        """Copies the storage of the runs there."""
        return Path(shutil.copytree(self.folder / "raydist_runs", folder / "raydist_runs"))


@pytest.fixture(scope="module")
def trained(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, rng = tmp_path_factory.mktemp("trained"), np.random.default_rng(1)
    (folder / "job.py").write_text(JOB)
    values = {
        "numbers": rng.normal(size=(ROWS, 4)).astype("float32"),
        "images": rng.integers(0, 255, size=(1100, 6, 5, 3)).astype("float32"),
    }
    for kind, examples in values.items():
        process = start_raydist(running_ray, folder, "submit", "job.py", "--name", kind, "-p", f"kind={kind}")
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        np.save(folder / f"{kind}.npy", examples)
    (folder / "predicted").mkdir()
    program(PREDICT, str(folder), cwd=folder / "predicted")
    predicted = {kind: np.load(folder / "predicted" / f"{kind}.npy") for kind in values}
    return Trained(folder, values, predicted)


def predictions(folder: Path) -> pa.Table:
    return pq.ParquetDataset(folder).read()


def matrix(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    return np.array(column.to_pylist(), np.float32)


def test_records_are_predicted_by_the_features_of_the_inputs_names(
    running_ray: RunningRay, raydist: Callable[..., Ended], trained: Trained, tmp_path: Path
) -> None:
    trained.copy_to(tmp_path)
    expected = trained.predicted["numbers"][:501]
    (tmp_path / "data").mkdir()
    program(WRITE, "tfrecord", str(trained.folder / "numbers.npy"), str(tmp_path / "data"))
    command = ("predict", "numbers", "data", "--address", running_ray.address, "--batch-size", "64")
    ended = raydist(*command, "-o", "out")
    assert ended.code == 0, ended.err
    found = predictions(tmp_path / "out")
    assert found["file"].to_pylist() == ["0.tfrecord"] * 251 + ["1.tfrecord"] * 250
    assert found["record"].to_pylist() == [*range(251), *range(250)]
    np.testing.assert_allclose(matrix(found["prediction"]), expected, rtol=0, atol=1e-6)
    (tmp_path / "out/part-000000.parquet").unlink()
    again = raydist(*command, "-o", "out", "--json")
    assert (again.code, again.json["parts_before"], again.json["rows_before"]) == (0, 1, 250)
    assert predictions(tmp_path / "out").equals(found)
    os.utime(tmp_path / "data/1.tfrecord")
    refused = raydist(*command, "-o", "out")
    assert refused.code == 2
    assert "since then a file of the data was written, added or deleted" in refused.err
    missing = raydist(*command, "-o", "other", "--features", "label,y")
    assert missing.code == 2
    assert "has no feature y; it has label, x" in missing.err
    assert json.loads((tmp_path / "other/_raydist.json").read_text())["features"] == ["label", "y"]


def test_csv_is_predicted_to_csv(
    running_ray: RunningRay, raydist: Callable[..., Ended], trained: Trained, tmp_path: Path
) -> None:
    trained.copy_to(tmp_path)
    values, expected = trained.values["numbers"][:5000], trained.predicted["numbers"][:5000]
    rows = [f'{n:05d},{",".join(map(str, row))},"row\n{n}"' for n, row in enumerate(values.tolist())]
    (tmp_path / "data.csv").write_text("\n".join(["id,a,b,c,d,text", *rows]))
    command = ("predict", "numbers", "data.csv", "-o", "out", "--address", running_ray.address, "--json")
    ended = raydist(*command, "--features", "a,b,c,d")
    assert (ended.code, ended.json["rows"]) == (0, 5000), ended.err
    with (tmp_path / "out/part-000000.csv").open(newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["id", "text", "prediction_0", "prediction_1", "prediction_2"]
    assert [row[:2] for row in found] == [[f"{n:05d}", f"row\n{n}"] for n in range(5000)]
    predicted = np.array([row[2:] for row in found], np.float32)
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=1e-6)
    other = raydist(*command, "--features", "a,b,c,d", "--to", "parquet")
    assert other.code == 2
    assert "is that of other predictions: to was 'csv', and is 'parquet'" in other.err


def test_images_are_predicted_from_any_folder(
    running_ray: RunningRay, raydist: Callable[..., Ended], trained: Trained, tmp_path: Path
) -> None:
    trained.copy_to(tmp_path)
    (tmp_path / "data").mkdir()
    program(WRITE, "images", str(trained.folder / "images.npy"), str(tmp_path / "data"))
    command = ("predict", "images", "data", "-o", "out", "--address", running_ray.address, "--workers", "2")
    ended = raydist(*command, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["parts"] == 2
    assert pq.read_metadata(tmp_path / "out/part-000000.parquet").num_rows == 1024
    found = predictions(tmp_path / "out")
    assert found["file"].to_pylist() == [f"{number:04d}.png" for number in range(1100)]
    expected = trained.predicted["images"]
    np.testing.assert_allclose(matrix(found["prediction"]), expected, rtol=0, atol=1e-6)


# Its layer ends the process that it runs in for a large value.
KILLING = """
import keras
import numpy as np
import tensorflow as tf

import raydist


@keras.saving.register_keras_serializable("test")
class Killing(keras.layers.Layer):
    def call(self, x):
        def end():
            with tf.control_dependencies([tf.raw_ops.Abort(error_msg="out of memory, say")]):
                return tf.identity(x)

        return tf.cond(tf.reduce_max(x) > 100.0, end, lambda: tf.identity(x))


@raydist.job(workers=1)
def train(ctx: raydist.TrainContext):
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,), name="x"), Killing(), keras.layers.Dense(3)])
        model.compile("adam", "mse")
    x, y = np.zeros((32, 4), "float32"), np.zeros((32, 3), "float32")
    ctx.fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(16), epochs=1)
"""


def test_model_that_kills_its_process_ends_the_predictions_with_a_remedy(
    running_ray: RunningRay, raydist: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(KILLING)
    assert raydist("submit", "job.py", "--name", "killing").code == 0
    (tmp_path / "data").mkdir()
    for file, value in enumerate((1.0, 1000.0)):
        pq.write_table(pa.table({"x": [[value] * 4] * 10}), tmp_path / f"data/{file}.parquet")
    command = ("predict", "killing", "data", "--address", running_ray.address)
    ended = raydist(*command, "-o", "out")
    assert ended.code == 3, ended.err
    assert "Ray cannot run the predictions: " in ended.err
    assert "or more memory; the same command continues" in ended.err
    assert "Traceback" not in ended.err
    assert "Warning" not in ended.err
    refused = raydist("export", "killing", "--to", "saved_model,onnx", "-o", "models")
    assert refused.code == 2
    assert "run killing cannot be exported as onnx: " in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["1"]
    inside = raydist(*command, "-o", "data/out")
    assert inside.code == 2
    assert f"{tmp_path}/data/out is in {tmp_path}/data, whose files are predicted for" in inside.err


def test_workers_share_gpus_that_are_fewer(gpu_ray: RunningRay, trained: Trained, tmp_path: Path) -> None:
    trained.copy_to(tmp_path)
    (tmp_path / "data").mkdir()
    for file in range(6):
        pq.write_table(pa.table({"x": [[float(file)] * 4] * 10}), tmp_path / f"data/{file}.parquet")
    # Ray only counts them: TensorFlow finds none and predicts on the CPU.
    command = ("predict", "numbers", "data", "-o", "out", "--address", gpu_ray.address, "--workers", "3")
    process = start_raydist(gpu_ray, tmp_path, *command, "--json")
    told, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(told)["rows"] == 60
    assert len(predictions(tmp_path / "out")) == 60


def test_predictions_on_s3_that_were_killed_are_continued_with_each_row_once(
    trained: Trained, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = trained.values["numbers"]
    with (
        s3_server() as endpoint,
        pytest.MonkeyPatch.context() as patch,
        started_ray(tmp_path_factory.mktemp("s"), environ={**os.environ, **s3_environ(endpoint)}) as ray,
    ):
        for name, value in s3_environ(endpoint).items():  # for what the test itself reads and writes
            patch.setenv(name, value)
        bucket = f"s3://{new_bucket(endpoint)}"
        data, out, runs = (Storage.open(f"{bucket}/{name}") for name in ("some data", "out", "runs"))
        for path in (trained.folder / "raydist_runs").glob("numbers/**/*"):
            if path.is_file():
                runs.upload(path, path.relative_to(trained.folder / "raydist_runs").as_posix())
        for file, rows in enumerate(np.array_split(np.arange(ROWS), FILES)):
            columns = {name: values[rows, place] for place, name in enumerate("abcd")}
            pq.write_table(pa.table({"id": rows, **columns}), tmp_path / "rows.parquet")
            data.upload(tmp_path / "rows.parquet", f"{file:02d}.parquet")

        def start(*arguments: str) -> subprocess.Popen[str]:
            command = ("predict", "numbers", data.uri(), "-o", out.uri(), "--address", ray.address)
            return start_raydist(ray, tmp_path, *command, "--storage", runs.uri(), *arguments)

        def ended(*arguments: str) -> Ended:
            process = start(*arguments)
            told, err = process.communicate(timeout=PATIENCE_S)
            return Ended(code=process.returncode, out=told, err=err)

        def parts() -> dict[str, bytes]:
            names = (name for name in out.list_names("") if name.startswith("part-"))
            return {name: out.read_bytes(name) for name in sorted(names)}

        # Small batches, so that there is a middle.
        options = ("--features", "a,b,c,d", "--batch-size", "4")
        process = start(*options)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(parts()) < 2:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        before = parts()
        assert 2 <= len(before) < FILES  # what a killed upload leaves is not a file
        refused = ended("--features", "a,b,d,c")
        assert refused.code == 2
        assert "is that of other predictions: features was " in refused.err

        continued = ended(*options, "--workers", "2", "--json")
        assert continued.code == 0, continued.err
        assert "Traceback" not in continued.err
        assert "core_worker" not in continued.err
        told = continued.json
        assert (told["rows"], told["parts"]) == (ROWS, FILES)
        assert len(before) <= told["parts_before"] < FILES
        after = parts()
        assert {name: after[name] for name in before} == before
        assert list(after) == [f"part-{number:06d}.parquet" for number in range(FILES)]
        again = ended(*options, "--json")
        assert (again.code, again.json["rows_before"]) == (0, ROWS)
    found = pa.concat_tables(pq.read_table(io.BytesIO(content)) for content in after.values())
    assert found.column_names == ["id", "prediction"]
    np.testing.assert_array_equal(found["id"].to_numpy(), np.arange(ROWS))
    np.testing.assert_allclose(matrix(found["prediction"]), trained.predicted["numbers"], rtol=0, atol=1e-6)


# Loads what was exported as those that serve it do.
LOAD = """
import sys
import numpy as np
import onnxruntime
import tensorflow as tf
folder, values = sys.argv[1], np.load(sys.argv[2])[:7]
loaded = tf.saved_model.load(folder + "/2")
served = loaded.serve(tf.constant(values)).numpy()
[lite] = tf.lite.Interpreter(model_path=folder + "/model.tflite").get_signature_runner()(x=values).values()
[onnx] = onnxruntime.InferenceSession(folder + "/model.onnx").run(None, {"x": values})
np.savez(sys.argv[3], served=served, lite=lite, onnx=onnx)
"""


# As an exporter does that has a fault.
SPOIL = """
import sys
import keras
model = keras.models.load_model(sys.argv[1])
model.layers[-1].bias.assign_add([0.0, 0.0, 0.01])
model.save(sys.argv[1])
"""


def test_exported_formats_have_the_outputs_of_the_run_s_model(
    raydist: Callable[..., Ended], trained: Trained, tmp_path: Path
) -> None:
    runs = trained.copy_to(tmp_path)
    formats = ["saved_model", "litert", "keras", "onnx"]
    first = raydist("export", "numbers", "--to", "saved_model", "-o", "models")
    assert first.code == 0, first.err
    ended = raydist("export", "numbers", "--to", ",".join(formats), "-o", "models", "--json")
    assert ended.code == 0, ended.err
    assert [row["format"] for row in ended.json["exported"]] == formats
    assert all(row["difference"] <= 1e-5 for row in ended.json["exported"])
    names = {"1", "2", "model.keras", "model.tflite", "model.onnx"}
    assert {path.name for path in (tmp_path / "models").iterdir()} == names
    program(LOAD, str(tmp_path / "models"), str(trained.folder / "numbers.npy"), str(tmp_path / "seen.npz"))
    with np.load(io.BytesIO((tmp_path / "seen.npz").read_bytes())) as seen:
        for name in seen:
            np.testing.assert_allclose(seen[name], trained.predicted["numbers"][:7], atol=1e-5, err_msg=name)

    model = runs / "numbers/export/model.keras"
    program(SPOIL, str(model))
    differing = raydist("export", "numbers", "--to", "keras", "-o", "spoiled")
    assert differing.code == 2
    assert "exported as keras: its outputs differ from those of the run's model by up to " in differing.err
    assert list((tmp_path / "spoiled").glob("*")) == []

    model.unlink()
    alone = raydist("export", "numbers", "--to", "keras,saved_model", "-o", "models")
    assert alone.code == 2
    [sentence] = alone.err.strip().splitlines()
    assert "cannot be exported as keras: the run has exported a SavedModel alone" in sentence
    assert sentence.endswith("models/3")  # which is written
