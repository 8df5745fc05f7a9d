"""ctx.distribute: what comes before it runs in the data workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended

pytestmark = pytest.mark.slow

Raydist = Callable[..., Ended]

NUM_EXAMPLES = 400

# Each example leaves a file that names the process in which it was made.
JOB = """
import os
import pathlib
import signal

import keras
import tensorflow as tf

import raydist


@keras.saving.register_keras_serializable()
class SeenOnce(keras.metrics.Metric):
    def __init__(self, num_examples=400, name="seen_once", **kwargs):
        super().__init__(name=name, **kwargs)
        self.counts = self.add_weight(shape=(num_examples,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        one_hot = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), self.counts.shape[0])
        self.counts.assign_add(tf.reduce_sum(one_hot, axis=0))

    def result(self):
        return tf.reduce_sum(tf.cast(self.counts == 1.0, tf.float32))


@raydist.job(params={"epochs": 2, "folder": "", "num_examples": 400, "kill": False})
def train(ctx: raydist.TrainContext):
    folder = ctx.params["folder"]

    def make(index):
        pid = tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]
        with tf.control_dependencies([tf.io.write_file(folder + "/" + tf.strings.as_string(index), pid)]):
            return tf.one_hot(index % 4, 4), tf.cast(index, tf.float32)

    data = ctx.distribute(tf.data.Dataset.range(ctx.params["num_examples"]).map(make)).batch(16)

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.params["kill"] and batch == 5 and ctx.attempt == 0 and ctx.is_chief:
                made_by = {int(path.read_text()) for path in pathlib.Path(folder).iterdir()}
                os.kill(max(made_by), signal.SIGKILL)

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), loss="mse", metrics=[SeenOnce()])
    ctx.fit(model, data, epochs=ctx.params["epochs"], callbacks=[Killer()])
"""


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    code, made = tmp_path / "code", tmp_path / "made"
    code.mkdir()
    made.mkdir()
    (code / "job.py").write_text(JOB)
    return ["submit", str(code / "job.py"), "-p", f"folder={made}", "--json"]


def pids_by_role(told: dict[str, Any]) -> dict[str, set[int]]:
    roles: dict[str, set[int]] = {}
    for task in told["tasks"]:
        roles.setdefault(task["task"].partition("/")[0], set()).add(task["pid"])
    return roles


def makers(tmp_path: Path) -> dict[int, int]:
    """Returns the process that made each example."""
    return {int(path.name): int(path.read_text()) for path in (tmp_path / "made").iterdir()}


def test_data_workers_make_each_example_once_for_all_workers(
    raydist: Raydist, job: list[str], tmp_path: Path, wait_until: WaitUntil
) -> None:
    ended = raydist(*job, "--workers", "2", "--data-workers", "2", "--ports", "23400-23420")
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["metrics"]["seen_once"] == NUM_EXAMPLES
    roles = pids_by_role(told)
    made_by = makers(tmp_path)
    assert sorted(made_by) == list(range(NUM_EXAMPLES))
    assert set(made_by.values()) == roles["data-worker"]
    assert len(roles["data-worker"]) == 2
    addresses = [task["address"] for task in told["tasks"] if task["task"].startswith("data-worker")]
    assert all(23400 <= int(address.rpartition(":")[2]) <= 23420 for address in addresses)
    pids = set().union(*roles.values())
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=15)


def test_killed_data_worker_costs_an_attempt_and_no_example(
    raydist: Raydist, job: list[str], tmp_path: Path
) -> None:
    """TensorFlow itself would go on without the elements that it had, and say nothing."""
    ended = raydist(*job, "--workers", "2", "--data-workers", "2", "-p", "kill=true")
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["attempts"] == 2
    assert told["metrics"]["seen_once"] == NUM_EXAMPLES
    assert "data-worker/" in ended.err
