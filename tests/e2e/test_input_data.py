"""What a user sees of bad input data, on real Ray and TensorFlow."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

JOB = """
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"data": "", "epochs": 3})
def train(ctx: raydist.TrainContext):
    source = raydist.data.from_parquet(ctx.params["data"], features=["a", "b"], label="y")
    batches = source.batches(global_batch_size=16, seed=1, window_mb=0.002)
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
    ctx.fit(model, batches, epochs=ctx.params["epochs"])
"""


def write_with_a_null(path: Path) -> None:
    """Row group 41 of column b has a null, and no statistics that would tell before."""
    values = np.linspace(0, 1, 48 * 8)
    with_null = pa.array(values, mask=np.arange(len(values)) == 41 * 8 + 3)
    table = pa.table({"a": values, "b": with_null, "y": values})
    pq.write_table(table, path, row_group_size=8, write_statistics=False)


@pytest.mark.exhaustive("parameter_server", covered_by="[multi_worker_mirrored]")
@pytest.mark.parametrize(
    "options", [(), ("--strategy", "parameter_server", "--ps", "1")], ids=["mirrored", "parameter_server"]
)
def test_null_that_no_statistics_show_ends_the_run_with_one_sentence(
    raydist: Callable[..., Ended], tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    path = tmp_path / "train.parquet"
    write_with_a_null(path)
    ended = raydist("submit", str(folder / "job.py"), "-p", f"data={path}", "--json", *options)
    assert ended.code == 2, ended.err
    error = ended.json["error"]
    assert error["type"] == "DataError"
    assert f"column b has 1 null in row group 41 of {path}; give defaults={{'b': …}}" in error["message"]
    assert ended.json["attempts"] == 1
    assert "\n" not in error["message"]
    assert "Traceback" not in ended.out + ended.err
    assert ended.err.count("row group 41") == 1


@pytest.mark.exhaustive(covered_by="training/test_recipes.py without Ray")
def test_replaced_worker_of_a_parameter_server_run_gets_its_data_again(
    running_ray: RunningRay, tmp_path: Path, wait_until: WaitUntil
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "job.py").write_text(JOB.replace("import tensorflow", "import time\nimport tensorflow"))
    values = np.linspace(0, 1, 48 * 8)
    # In the job's folder, of which each task has a copy with times of its own.
    data = folder / "train.parquet"
    pq.write_table(pa.table({"a": values, "b": values, "y": values}), data, row_group_size=8)
    options = ("--strategy", "parameter_server", "--ps", "1", "--name", "replaced", "-p", "epochs=40")
    process = start_raydist(
        running_ray, tmp_path, "submit", "code/job.py", "-p", f"data={data.name}", "--json", *options
    )

    def status() -> dict[str, Any]:
        assert process.poll() is None, process.communicate()
        return status_of(tmp_path, "replaced")

    wait_until(lambda: status()["steps"] >= 24, timeout_s=200)
    pid = next(task["pid"] for task in status()["tasks"] if task["task"] == "worker/1")
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        worker = next(task for task in status()["tasks"] if task["task"] == "worker/1")
        return worker["incarnation"] == 1 and worker["state"] == "RUNNING"

    wait_until(is_back, timeout_s=200)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["steps"], result["attempts"]) == (40 * 24, 1)
    # What workers are told to read is unpickled by them, and holds the URIs as they were given.
    assert not (tmp_path / "raydist_runs" / "replaced" / "sources").exists()
