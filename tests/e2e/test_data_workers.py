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


@keras.saving.register_keras_serializable()
class Fewest(SeenOnce):
    def result(self):
        return tf.reduce_min(self.counts)


@keras.saving.register_keras_serializable()
class Most(SeenOnce):
    def result(self):
        return tf.reduce_max(self.counts)


@raydist.job(
    params={"epochs": 2, "folder": "", "num_examples": 400, "kill": "", "sharding": "dynamic", "steps": 0}
)
def train(ctx: raydist.TrainContext):
    folder, sharding, kill = ctx.params["folder"], ctx.params["sharding"], ctx.params["kill"]
    pids = {}

    def make(index):
        pid = tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]
        with tf.control_dependencies([tf.io.write_file(folder + "/" + tf.strings.as_string(index), pid)]):
            return tf.one_hot(index % 4, 4), tf.cast(index, tf.float32)

    def data():
        examples = tf.data.Dataset.range(ctx.params["num_examples"]).map(make)
        examples = examples.shuffle(100).repeat() if sharding == "off" else examples
        return ctx.distribute(examples, sharding=sharding).batch(16)

    def pid_of(name):
        titled = [
            path.parent
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
            if path.read_text().startswith(f"raydist::{name}")
        ]
        [pid] = [int(path.name) for path in titled if ctx.run_name in os.readlink(path / "cwd")]
        return pid

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if kill and batch == 5 and ctx.attempt == 0 and ctx.is_chief and "killed" not in pids:
                pids["killed"] = pid_of(kill)
                os.kill(pids["killed"], signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            if sharding == "off":  # until the replacement has made something
                made_by = {path.read_text() for path in pathlib.Path(folder).iterdir()}
                pids.setdefault("makers", set()).update(made_by)
                self.model.stop_training = len(pids["makers"]) == 3

    with ctx.strategy.scope():
        others = [Fewest(name="fewest"), Most(name="most")]
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), loss="mse", metrics=[SeenOnce(), *others])
    steps = ctx.params["steps"] or None
    ctx.fit(
        model,
        data if ctx.coordinator else data(),
        epochs=ctx.params["epochs"],
        steps_per_epoch=steps,
        callbacks=[Killer()],
    )
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
    ended = raydist(*job, "--workers", "2", "--data-workers", "2", "-p", "kill=data-worker/1")
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["attempts"] == 2
    assert told["metrics"]["seen_once"] == NUM_EXAMPLES
    assert "data-worker/" in ended.err


PARAMETER_SERVER = [
    *("--strategy", "parameter_server", "--workers", "2", "--ps", "1", "--data-workers", "2"),
    *("--cpus", "chief=0.5", "--cpus", "worker=0.5", "--cpus", "ps=0.5", "--cpus", "data-worker=0.5"),
]


@pytest.mark.parametrize("arguments", [["--workers", "1", "--data-workers", "2"], PARAMETER_SERVER])
def test_killed_data_worker_that_made_all_of_the_data_costs_no_attempt(
    raydist: Raydist, job: list[str], tmp_path: Path, arguments: list[str]
) -> None:
    off = ["-p", "sharding=off", "-p", "kill=data-worker/1", "-p", "steps=20", "-p", "epochs=1000"]
    ended = raydist(*job, *arguments, *off)
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["attempts"] == 1, ended.err
    [note] = [note for note in told["notes"] if note.startswith("data-worker/1 died (attempt 0")]
    assert "; back in service after " in note
    assert len(pids_by_role(told)["data-worker"] & set(makers(tmp_path).values())) == 2


@pytest.mark.parametrize("killed", ["", "worker/1", "data-worker/1"])
def test_workers_of_parameter_servers_share_each_pass(
    raydist: Raydist, job: list[str], tmp_path: Path, killed: str
) -> None:
    """A worker takes the elements that it has received with it, and joins the pass under way."""
    eight_passes = ["-p", "steps=200", "-p", "epochs=1"]
    ended = raydist(*job, *PARAMETER_SERVER, *eight_passes, "-p", f"kill={killed}")
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["attempts"] == (2 if killed.startswith("data") else 1)
    assert told["steps"] == 200
    if killed == "worker/1":
        assert any(note.startswith("worker/1 died") for note in told["notes"])
    if told["attempts"] == 1:
        assert set(makers(tmp_path).values()) == pids_by_role(told)["data-worker"]
        assert told["metrics"]["fewest"] >= (6 if killed else 7)
        assert told["metrics"]["most"] <= 9


FORMS = """
import keras
import numpy as np
import tensorflow as tf

import raydist


@raydist.job
def train(ctx: raydist.TrainContext):
    def data():
        return ctx.distribute(tf.data.Dataset.range(400).map(lambda x: (tf.one_hot(x % 4, 4), x))).batch(16)

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        seen = tf.Variable(tf.zeros([400]))
    refused = []
    for call in (
        lambda: ctx.fit(model, data(), epochs=1, steps_per_epoch=25),
        lambda: ctx.evaluate(model, data),
        lambda: ctx.distribute(tf.data.Dataset.range(400).repeat()),
    ):
        try:
            call()
        except raydist.UnsupportedError as error:
            refused.append(str(error))

    def step(batch):
        seen.assign_add(tf.reduce_sum(tf.one_hot(batch[1], 400), axis=0))
        return {"loss": 0.0}

    ctx.fit(model, data, epochs=2)
    steps = ctx.step
    ctx.train_steps(step, data, num_steps=200)
    by_steps = [int(one) for one in (tf.reduce_min(seen), tf.reduce_max(seen))]
    iterator = iter(ctx.coordinator.create_per_worker_dataset(lambda: data().repeat()))
    next_batch = tf.function(lambda iterator: next(iterator)[1])
    batches = [ctx.coordinator.schedule(next_batch, args=(iterator,)) for _ in range(200)]
    ctx.coordinator.join()
    counts = np.bincount(np.concatenate([one.fetch() for one in batches]), minlength=400)
    spread = [*by_steps, int(counts.min()), int(counts.max())]
    return {"refused": refused, "steps": steps, "spread": spread}
"""


def test_loops_of_parameter_servers_share_each_pass_too(raydist: Raydist, job: list[str]) -> None:
    Path(job[1]).write_text(FORMS)
    ended = raydist("submit", job[1], *PARAMETER_SERVER, "--json")
    assert ended.code == 0, ended.err
    value = ended.json["value"]
    outside, evaluated, repeated = value["refused"]
    assert "TensorFlow loses elements between the passes" in repeated
    assert "raydist counted 25 batches in one pass over train_data" in str(ended.json["notes"])
    assert value["steps"] == 50
    assert "give a function: lambda: ctx.distribute(dataset)" in outside
    assert "which workers of parameter servers can read only once; give it without" in evaluated
    assert 7 <= min(value["spread"]) <= max(value["spread"]) <= 9, value
