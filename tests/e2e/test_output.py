"""Files of a job: what it writes is kept with the run, in a folder and on S3. Real Ray and TensorFlow."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Ended

pytestmark = pytest.mark.slow

# The chief dies in its first attempt, so that what it wrote is salvaged, and found by the second.
JOB = """
import os
import signal

import numpy as np
import tensorflow as tf

import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    class Killed(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2 and ctx.is_chief and ctx.attempt == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((np.ones((8, 6)), np.zeros((8, 2)))).repeat(3)
    loggers = [
        tf.keras.callbacks.CSVLogger(ctx.output_dir / "log.csv", append=True),
        tf.keras.callbacks.CSVLogger("relative.csv"),
    ]
    ctx.fit(model, data, epochs=4, callbacks=[*loggers, Killed()])
    model.save("model.keras")
    (ctx.output_dir / "task.txt").write_text(f"{ctx.task} {ctx.attempt}")
"""

SCRIPT = """
import numpy as np
import tensorflow as tf

import raydist

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 6)), np.zeros((8, 2)))
model.save("model.keras")
(raydist.context().output_dir / "told.txt").write_text("by a script")
"""


# What it has written cannot be stored when it ends.
BLOCKED = """
from pathlib import Path

import raydist

ctx = raydist.context()
(ctx.output_dir / "told.txt").write_text("by a script")
Path(ctx.storage, "output").write_text("a file in the way")
"""


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def write(folder: Path, program: str) -> str:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "main.py").write_text(program)
    return str(folder / "code" / "main.py")


def test_files_of_a_job_whose_chief_died_are_all_on_s3(tmp_path: Path, s3_uri: str) -> None:
    def command(*arguments: str) -> dict[str, Any]:
        line = [sys.executable, "-m", "raydist.cli.main", *arguments, "--storage", s3_uri, "--json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    told = command("submit", write(tmp_path, JOB), "--address", "local", "--name", "r")
    assert told["attempts"] == 2
    assert command("download", "r", "output", str(tmp_path / "out"))["num_files"] == 5
    out = tmp_path / "out"
    working = {"working_dir/model.keras", "working_dir/relative.csv"}
    assert names(out) == {"log.csv", "task.txt", "worker-1/task.txt", *working}
    with (out / "log.csv").open() as file:
        epochs = [int(row["epoch"]) for row in csv.DictReader(file)]
    assert (epochs[0], sorted(set(epochs))) == (0, [0, 1, 2, 3])
    assert (out / "task.txt").read_text() == "worker/0 1"
    assert (out / "worker-1" / "task.txt").read_text() == "worker/1 1"
    assert zipfile.ZipFile(out / "working_dir" / "model.keras").testzip() is None
    (note,) = [note for note in told["notes"] if note.startswith("the run keeps")]
    assert note.endswith("output/working_dir: relative.csv, model.keras")


def test_files_of_a_script_are_kept(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT)
    (tmp_path / "code" / "data.npz").write_bytes(os.urandom(11 * 10**6))
    ended = raydist("submit", script, "--name", "r", "--json")
    assert ended.code == 0, ended.err
    notes = ended.json["notes"]
    (note,) = [note for note in notes if "travels" in note]
    assert note.startswith("the code that travels to each host takes 11.0 MB, of which data.npz 11.0 MB;")
    assert names(tmp_path / "raydist_runs" / "r" / "output") == {"told.txt", "working_dir/model.keras"}
    assert any(note.startswith("the run keeps 1 file") for note in notes)
    assert names(tmp_path / "code") == {"main.py", "data.npz"}


def test_output_that_cannot_be_stored_fails_the_run(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    ended = raydist("submit", write(tmp_path, BLOCKED), "--name", "r", "--json")
    assert ended.code == 4, ended.err
    error = ended.json["error"]
    assert (error["type"], error["task"]) == ("StorageError", "worker/0")
    assert f"{tmp_path}/raydist_runs/r/output/told.txt" in error["message"]
