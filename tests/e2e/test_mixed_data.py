"""`raydist.data.mix` in a run: workers that are killed in the middle train on what one device trains on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

# Files of `FIRST` rows with ids from 0, and arrays of `SECOND` examples with ids from 1000.
FIRST, SECOND, BATCH_SIZE, EPOCHS = 300, 200, 24, 2
WEIGHTS = [0.7, 0.3]
JOB = """
import json
import time

import numpy as np
import tensorflow as tf

import raydist


def examples(ids):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype("float32")[ids]
    return {"id": ids, "x": x, "y": x @ np.array([1, -2, 3], "float32") + ids % 7}


@raydist.job(params={"folder": "", "pause_s": 0.0})
def train(ctx: raydist.TrainContext):
    params = ctx.params
    second = examples(np.arange(1000, 1200))
    sources = [
        raydist.data.from_parquet(params["folder"] + "/data", columns=["id", "x", "y"]),
        raydist.data.from_arrays({**second, "y": second["y"].astype("float32")}),
    ]
    # Windows of some row groups, so that there are several in a pass.
    mixed = raydist.data.mix(sources, weights=[0.7, 0.3], stop="longest")
    batches = mixed.batches(global_batch_size=24, seed=3, window_mb=0.002)
    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input((3,)), *layers])
        optimizer = tf.keras.optimizers.SGD(0.02, momentum=0.9)
        optimizer.build(model.trainable_variables)
    for number, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.default_rng(number).normal(size=variable.shape))
    ctx.restore(model=model, optimizer=optimizer)
    record = open(f"{params['folder']}/{ctx.run_name}-{ctx.attempt}-{ctx.task.index}.jsonl", "a", buffering=1)

    def write(ids, step):
        record.write(json.dumps([int(step), ids.tolist()]) + "\\n")
        time.sleep(params["pause_s"] if ctx.attempt == 0 else 0.0)
        return ids

    def step_fn(batch):
        tf.numpy_function(write, [batch["id"], optimizer.iterations], tf.int64)  # no gradient waits for it
        with tf.GradientTape() as tape:
            losses = tf.square(model(batch["x"], training=True)[:, 0] - batch["y"])
            loss = tf.nn.compute_average_loss(losses, global_batch_size=tf.constant(24))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": tf.reduce_mean(losses)}

    ctx.train_steps(step_fn, batches, num_steps=2 * batches.steps_per_epoch, steps_per_call=1)
    weights = [one.tolist() for one in model.get_weights()]
    return {"weights": weights, "steps_per_epoch": batches.steps_per_epoch}
"""


class Runs:
    """Runs of the job, and what their workers trained on."""

    def __init__(self, running_ray: RunningRay, folder: Path) -> None:
        self.folder = folder
        self._running_ray = running_ray
        (folder / "code").mkdir()
        (folder / "code/job.py").write_text(JOB)
        (folder / "data").mkdir()
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2000, 3)).astype("float32")[:FIRST]
        y = (x @ np.array([1, -2, 3], "float32") + np.arange(FIRST) % 7).astype("float32")
        for number, ids in enumerate(np.array_split(np.arange(FIRST), 3)):
            lists = pa.FixedSizeListArray.from_arrays(x[ids].reshape(-1), 3)
            table = pa.table({"id": ids, "x": lists, "y": y[ids]})
            pq.write_table(table, folder / f"data/{number}.parquet", row_group_size=15)

    def start(self, name: str, *options: str) -> subprocess.Popen[str]:
        common = ("--name", name, "--json", "--checkpoint-every", "7", "-p", f"folder={self.folder}")
        return start_raydist(self._running_ray, self.folder, "submit", "code/job.py", *common, *options)

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    def status(self, name: str) -> dict[str, Any]:
        return status_of(self.folder, name)

    def steps(self, name: str, *, attempt: int, num_workers: int) -> dict[int, list[int]]:
        """Returns the ids of each global batch; of the last step before a kill a worker may have none."""
        parts: list[dict[int, list[int]]] = []
        for index in range(num_workers):
            lines = (self.folder / f"{name}-{attempt}-{index}.jsonl").read_text().splitlines()
            parts.append(dict(map(json.loads, lines)))
        common = set.intersection(*map(set, parts))
        return {step: [one for part in parts for one in part[step]] for step in sorted(common)}


def check_epoch(ids: Sequence[int]) -> None:
    """Checks what the guide says of an epoch."""
    first, second = [one for one in ids if one < FIRST], [one for one in ids if one >= 1000]
    assert len(first) + len(second) == len(ids)
    assert abs(len(first) - WEIGHTS[0] * len(ids)) <= 1
    assert sorted(second) == list(range(1000, 1000 + SECOND))
    # A second pass begins within a batch, whose examples stand by their lanes.
    counts = Counter(first)
    assert (len(counts), max(counts.values())) == (FIRST, 2)
    assert len({*first[: FIRST - BATCH_SIZE]}) == FIRST - BATCH_SIZE


def test_killed_workers_go_on_with_each_example_once_and_end_with_the_weights_of_one_device(
    running_ray: RunningRay, tmp_path: Path, wait_until: WaitUntil
) -> None:
    runs = Runs(running_ray, tmp_path)
    alone = runs.end(runs.start("alone", "--strategy", "one_device"))
    expected = runs.steps("alone", attempt=0, num_workers=1)
    per_epoch = alone["value"]["steps_per_epoch"]
    assert list(expected) == list(range(EPOCHS * per_epoch))
    epochs = [
        [one for step in range(first, first + per_epoch) for one in expected[step]]
        for first in (0, per_epoch)
    ]
    assert epochs[0] != epochs[1]
    for ids in epochs:
        check_epoch(ids)

    process = runs.start("killed", "--workers", "2", "-p", "pause_s=0.2")
    wait_until(lambda: process.poll() is not None or runs.status("killed")["steps"] >= 16, timeout_s=240)
    for task in runs.status("killed")["tasks"]:
        os.kill(task["pid"], signal.SIGKILL)
    resumed = runs.end(process)
    assert (resumed["attempts"], resumed["strategy"]) == (2, "multi_worker_mirrored")

    before = runs.steps("killed", attempt=0, num_workers=2)
    after = runs.steps("killed", attempt=1, num_workers=2)
    first_step = min(after)
    assert 7 <= first_step <= len(before) + 1 < EPOCHS * per_epoch
    for found in (before, after):
        assert found == {step: expected[step] for step in found}
    assert list(before)[:first_step] == list(range(first_step))
    assert list(after) == list(range(first_step, EPOCHS * per_epoch))
    for one, other in zip(resumed["value"]["weights"], alone["value"]["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, equal_nan=False)
