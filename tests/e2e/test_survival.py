"""Runs that are disturbed, on real Ray and TensorFlow: their result is that of the undisturbed run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import RunningRay, start_raydist, status_of
from tests.support.ray_heads import ray_head

pytestmark = pytest.mark.slow

# `hang_in` is the attempt in which the last worker hangs.
JOB = """
import time

import numpy as np
import tensorflow as tf

import raydist


@raydist.job(params={"pause_s": 0.05, "paced": 1, "hang_in": -1})
def train(ctx: raydist.TrainContext):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")

    class Pace(tf.keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            time.sleep(ctx.params["pause_s"] if ctx.attempt < ctx.params["paced"] else 0.0)
            if self.steps == 10 and ctx.attempt == ctx.params["hang_in"] and not ctx.is_chief:
                sleep_for_ever()

    def sleep_for_ever():
        while True:
            time.sleep(1)

    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential([tf.keras.Input((6,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(240, seed=2).batch(12)
    ctx.fit(model, data, epochs=3, callbacks=[Pace()])
"""
NUM_STEPS = 60


class Runs:
    """Runs of the job in one folder, read back from storage."""

    def __init__(self, running_ray: RunningRay, folder: Path) -> None:
        self._running_ray = running_ray
        self._folder = folder
        (folder / "code").mkdir()
        (folder / "code" / "job.py").write_text(JOB)

    def start(self, name: str, *options: str) -> subprocess.Popen[str]:
        common = ("--name", name, "--json", "--checkpoint-every", "7", *options)
        return start_raydist(self._running_ray, self._folder, "submit", "code/job.py", *common)

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        return json.loads(out)

    def record(self, name: str) -> dict[str, Any]:
        return status_of(self._folder, name)

    def pid(self, name: str, task: str) -> int | None:
        return next((one["pid"] for one in self.record(name)["tasks"] if one["task"] == task), None)

    def log(self, name: str, task: str, *, attempt: int) -> str:
        folder = self._folder / "raydist_runs" / name / "logs" / str(attempt) / task.replace("/", "-")
        return "".join(path.read_text() for path in sorted(folder.iterdir()))


@pytest.fixture
def runs(running_ray: RunningRay, tmp_path: Path) -> Runs:
    return Runs(running_ray, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The weights of a run that nothing happened to."""
    runs = Runs(running_ray, tmp_path_factory.mktemp("undisturbed"))
    return weights_of(runs.end(runs.start("calm", "--workers", "2", "-p", "pause_s=0")))


def weights_of(result: dict[str, Any]) -> list[np.ndarray]:
    """Returns what the last checkpoint holds."""
    content = Path(result["checkpoint"], "variables.npz").read_bytes()
    with np.load(io.BytesIO(content)) as arrays:
        return [arrays[key] for key in sorted(arrays)]


def check(result: dict[str, Any], undisturbed: list[np.ndarray], *, attempts: int = 2) -> None:
    """Checks that the run has done all, and what the undisturbed run has done."""
    assert (result["state"], result["steps"]) == ("SUCCEEDED", NUM_STEPS)
    assert result["attempts"] == attempts, result["notes"]
    for ours, theirs in zip(weights_of(result), undisturbed, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_run_by_a_client_address_is_as_one_of_the_cluster(
    undisturbed: list[np.ndarray], wait_until: WaitUntil, tmp_path: Path
) -> None:
    with ray_head(num_cpus=2) as head:
        ray = RunningRay(address=head.client_address, environ=head.environ, temp_dir=tmp_path)
        runs = Runs(ray, tmp_path)
        process = runs.start("outside", "--workers", "2")
        wait_until(lambda: process.poll() is not None or runs.record("outside")["steps"] >= 25)
        pid = runs.pid("outside", "worker/1")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        check(runs.end(process), undisturbed)


def test_run_whose_tasks_have_to_leave_and_hang_ends_with_the_same_weights(
    runs: Runs, undisturbed: list[np.ndarray], wait_until: WaitUntil
) -> None:
    def pid_at(step: int, task: str, *, attempt: int) -> int:
        def is_there() -> bool:
            record = runs.record("hung")
            return record["steps"] >= step and record["attempts"] == attempt + 1

        wait_until(lambda: process.poll() is not None or is_there(), timeout_s=240)
        pid = runs.pid("hung", task)
        assert pid is not None
        return pid

    options = ("--stall-timeout", "12", "--max-failures", "2")
    paced = ("-p", "pause_s=0.2", "-p", "paced=2", "-p", "hang_in=2")
    process = runs.start("hung", "--workers", "2", *options, *paced)
    os.kill(pid_at(8, "worker/0", attempt=0), signal.SIGTERM)
    stopped = pid_at(25, "worker/1", attempt=1)
    os.kill(stopped, signal.SIGSTOP)
    result = runs.end(process)
    check(result, undisturbed, attempts=4)
    assert not Path(f"/proc/{stopped}").exists()
    notes = result["notes"]
    (left,) = (note for note in notes if "had to leave" in note)
    assert left.startswith(
        "worker/0 had to leave (SIGTERM): training was restarted from the checkpoint of step"
    )
    # Of the two failures that are allowed it has cost none.
    assert any("worker/1" in note and "no heartbeat for" in note for note in notes), notes
    hung = next(note for note in notes if "no task has made progress" in note)
    assert hung.startswith("worker/1 failed first (attempt 2): Stalled"), hung
    assert "worker/1 is in job.py:27 (sleep_for_ever), the others wait for it" in hung
    log = runs.log("hung", "worker/1", attempt=2)
    assert log.rindex('File "job.py", line 27 in sleep_for_ever') < log.rindex("Thread raydist-")
    assert "most recent call first" in runs.log("hung", "worker/0", attempt=2)


def test_run_grows_when_there_is_room(
    runs: Runs, undisturbed: list[np.ndarray], wait_until: WaitUntil
) -> None:
    room = ("--cpus", "worker=2")
    other = runs.start("other", "--workers", "1", *room, "-p", "pause_s=5")
    wait_until(lambda: other.poll() is not None or runs.record("other")["state"] == "RUNNING", timeout_s=240)
    process = runs.start("grown", "--workers", "1:2", *room, "-p", "pause_s=0.5")
    wait_until(lambda: process.poll() is not None or runs.record("grown")["steps"] >= 3, timeout_s=240)
    assert [one["task"] for one in runs.record("grown")["tasks"]] == ["worker/0"]
    other.send_signal(signal.SIGINT)
    other.communicate(timeout=60)
    result = runs.end(process)
    check(result, undisturbed)
    assert len(result["tasks"]) == 2
    notes = result["notes"]
    assert any("there is room for 2 workers instead of 1" in note for note in notes), notes
