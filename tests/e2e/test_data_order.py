"""Every number of workers sees the same examples in the same steps, also after failures and resizing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.data import from_parquet
from tests.conftest import WaitUntil
from tests.e2e.conftest import RunningRay, start_raydist, status_of
from tests.support.lanes import num_lanes
from tests.support.ray_heads import ray_node

pytestmark = pytest.mark.slow

NUM_EXAMPLES, BATCH_SIZE, EPOCHS = 1000, 24, 2
STEPS_PER_EPOCH = -(-NUM_EXAMPLES // BATCH_SIZE)
# Windows of 400 rows in all: enough for 4 lanes.
BATCHES = {"global_batch_size": BATCH_SIZE, "seed": 3, "window_mb": 0.0032}
JOB = """
import json
import os
import time

import tensorflow as tf

import raydist


@raydist.job(params={"data": "", "records": "", "batches": "", "pause_s": 0.0})
def train(ctx: raydist.TrainContext):
    source = raydist.data.from_parquet(ctx.params["data"], columns=["id"])
    batches = source.batches(**json.loads(ctx.params["batches"]))
    with ctx.strategy.scope():
        weight = tf.Variable(1.0)
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])
    ctx.restore(optimizer=optimizer, weight=weight)
    record = open(f"{ctx.params['records']}/{ctx.attempt}-{ctx.task.index}.jsonl", "a", buffering=1)

    def write(ids, step):
        record.write(json.dumps([int(step), ids.tolist()]) + "\\n")
        time.sleep(ctx.params["pause_s"] if ctx.attempt == 0 else 0.0)
        return ids

    def step_fn(batch):
        ids = tf.numpy_function(write, [batch["id"], optimizer.iterations], tf.int64)
        with tf.control_dependencies([ids]):
            optimizer.apply_gradients([(tf.zeros([]), weight)])
        return {"loss": tf.constant(0.0)}

    ctx.train_steps(step_fn, batches, num_steps=2 * batches.steps_per_epoch, steps_per_call=1)
"""


class Recorded:
    """Runs of the job, each with what its workers trained on."""

    def __init__(self, running_ray: RunningRay, folder: Path) -> None:
        self._running_ray = running_ray
        self._folder = folder
        (folder / "code").mkdir()
        (folder / "code" / "job.py").write_text(JOB)
        self.data = folder / "data"
        self.data.mkdir()
        for number, ids in enumerate(np.array_split(np.arange(NUM_EXAMPLES), 3)):
            pq.write_table(pa.table({"id": ids}), self.data / f"{number}.parquet", row_group_size=25)

    def start(self, name: str, *options: str) -> subprocess.Popen[str]:
        records = self._folder / name
        records.mkdir()
        params = ("-p", f"data={self.data}", "-p", f"records={records}")
        params += ("-p", f"batches={json.dumps(BATCHES)}")
        common = ("--name", name, "--json", "--checkpoint-every", "7", *params)
        return start_raydist(self._running_ray, self._folder, "submit", "code/job.py", *common, *options)

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    def status(self, name: str) -> dict[str, Any]:
        return status_of(self._folder, name)

    def steps(self, name: str) -> Iterator[tuple[int, int, list[int]]]:
        """Yields attempt, step and ids of each global batch, put together from what the workers recorded."""
        parts: dict[tuple[int, int], dict[int, list[int]]] = {}
        for path in (self._folder / name).iterdir():
            attempt, index = map(int, path.stem.split("-"))
            for line in path.read_text().splitlines():
                step, ids = json.loads(line)
                parts.setdefault((attempt, step), {})[index] = ids
        num_workers = {attempt: 1 + max(map(max, self._of(parts, attempt))) for attempt, _ in parts}
        for (attempt, step), by_worker in sorted(parts.items()):
            if len(by_worker) == num_workers[attempt]:  # a killed worker may have missed a step's end
                yield attempt, step, [one for index in sorted(by_worker) for one in by_worker[index]]

    @staticmethod
    def _of(
        parts: dict[tuple[int, int], dict[int, list[int]]], attempt: int
    ) -> Iterator[dict[int, list[int]]]:
        return (by_worker for (number, _), by_worker in parts.items() if number == attempt)


@pytest.fixture(scope="module")
def recorded(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(running_ray, tmp_path_factory.mktemp("order"))


@pytest.fixture(scope="module")
def expected(recorded: Recorded) -> list[list[int]]:
    """The batches of one process that nothing happens to."""
    recorded.end(recorded.start("one", "--workers", "1"))
    return [ids for _, _, ids in recorded.steps("one")]


def check(recorded: Recorded, name: str, expected: list[list[int]]) -> None:
    seen = {}
    for attempt, step, ids in recorded.steps(name):
        assert ids == expected[step], (attempt, step)
        seen[step] = ids
    assert sorted(seen) == list(range(EPOCHS * STEPS_PER_EPOCH))


def test_batches_are_read_in_several_lanes(recorded: Recorded) -> None:
    assert num_lanes(from_parquet(str(recorded.data), columns=["id"]).batches(**BATCHES)) == 4


def test_epoch_is_each_example_once_in_an_order_of_its_own(expected: list[list[int]]) -> None:
    epochs = expected[:STEPS_PER_EPOCH], expected[STEPS_PER_EPOCH:]
    for epoch in epochs:
        assert sorted(one for ids in epoch for one in ids) == list(range(NUM_EXAMPLES))
    assert epochs[0] != epochs[1]


def test_workers_together_train_on_the_batches_of_one(recorded: Recorded, expected: list[list[int]]) -> None:
    recorded.end(recorded.start("undisturbed", "--workers", "2"))
    check(recorded, "undisturbed", expected)


def test_shrinking_from_3_to_2_workers_changes_no_batch(
    recorded: Recorded, expected: list[list[int]], running_ray: RunningRay, wait_until: WaitUntil
) -> None:
    def num_steps() -> int:
        return 0 if process.poll() is not None else int(recorded.status("shrunk")["steps"])

    with ray_node(running_ray.address, num_cpus=2, is_lost=True, **running_ray.environ):
        options = ("--workers", "2:3", "--cpus", "worker=2", "-p", "pause_s=0.2")
        process = recorded.start("shrunk", *options)
        wait_until(lambda: process.poll() is not None or num_steps() >= 25, timeout_s=240)
        assert len(recorded.status("shrunk")["tasks"]) == 3
    result = recorded.end(process)
    assert [task["task"] for task in result["tasks"]] == ["worker/0", "worker/1"]
    check(recorded, "shrunk", expected)
