"""ParameterServer as a user runs it: every role an actor of a running Ray, and tasks that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Raydist, RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

JOB = """
import time
from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits

import raydist


@raydist.job(strategy="parameter_server", workers=2, ps=1, params={"epochs": 2, "steps": 100, "release": ""})
def train(ctx: raydist.TrainContext):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")

    def training():
        return tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500])).shuffle(1500).batch(32)

    def validation():
        return tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(64)

    class Hold(tf.keras.callbacks.Callback):
        # Waits in each attempt's second epoch until the test has done what it came for.
        def on_train_batch_end(self, batch, logs=None):
            release = Path(f"{ctx.params['release']}-{ctx.attempt}")
            while ctx.params["release"] and ctx.step > ctx.params["steps"] and not release.exists():
                time.sleep(0.05)

    with ctx.strategy.scope():
        hidden, logits = tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)
        model = tf.keras.Sequential([tf.keras.Input((64,)), hidden, logits])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.003), loss=loss, metrics=["accuracy"])
    ctx.fit(
        model,
        training,
        epochs=ctx.params["epochs"],
        steps_per_epoch=ctx.params["steps"],
        validation_data=validation,
        callbacks=[Hold()],
    )
"""
EPOCHS, STEPS = 4, 200
LONG_STEPS = EPOCHS * STEPS


@pytest.fixture
def job(tmp_path: Path) -> str:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "digits_ps.py").write_text(JOB)
    return str(folder / "digits_ps.py")


def test_every_role_does_its_part(raydist: Raydist, job: str, wait_until: WaitUntil) -> None:
    share = ("--cpus", "worker=0.5", "--cpus", "ps=0.5")
    ended = raydist("submit", job, "--evaluator", *share, "--json", "--name", "roles")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["attempts"]) == ("SUCCEEDED", "parameter_server", 1)
    assert (result["steps"], result["steps_repeated"]) == (200, 0)
    assert [task["task"] for task in result["tasks"]] == [
        *("chief/0", "worker/0", "worker/1", "ps/0", "evaluator/0")
    ]
    pids = [task["pid"] for task in result["tasks"]]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))  # servers never return
    assert set(result["metrics"]) == {"loss", "accuracy"}  # the evaluator has the others
    evaluation = result["evaluation"]
    assert (evaluation["step"], evaluation["lag_steps"]) == (200, 0)
    assert evaluation["metrics"]["val_accuracy"] > 0.5
    assert "evaluator/0" in raydist("metrics", "roles", "--format", "csv").out
    assert "serves at" in raydist("logs", "roles", "--task", "ps/0").out


def pid_of(folder: Path, name: str, task: str) -> Any:
    """Returns the pid of the task's process; None while it has none."""
    return {one["task"]: one["pid"] for one in status_of(folder, name)["tasks"]}.get(task)


def start(running_ray: RunningRay, folder: Path, job: str, name: str, *options: str) -> subprocess.Popen[str]:
    """Starts a run whose attempt N holds in its second epoch until the file `release-N` is there."""
    hold = ("-p", f"epochs={EPOCHS}", "-p", f"steps={STEPS}", "-p", f"release={folder / 'release'}")
    return start_raydist(running_ray, folder, "submit", job, "--json", "--name", name, *hold, *options)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    assert (result["state"], result["steps"]) == ("SUCCEEDED", LONG_STEPS)
    return result


def test_run_whose_worker_and_server_are_killed_and_have_to_leave_ends_as_it_should(
    raydist: Raydist, running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start(running_ray, tmp_path, job, "lost")

    def is_training(attempt: int) -> bool:
        assert process.poll() is None, process.communicate()
        status = status_of(tmp_path, "lost")
        is_held = status["state"] == "RUNNING" and status["steps"] > STEPS
        return is_held and status["attempts"] == attempt + 1 and pid_of(tmp_path, "lost", "ps/0") is not None

    wait_until(lambda: is_training(0), timeout_s=240)
    before = pid_of(tmp_path, "lost", "worker/1")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: pid_of(tmp_path, "lost", "worker/1") not in (before, None), timeout_s=240)
    assert is_training(0)
    os.kill(pid_of(tmp_path, "lost", "ps/0"), signal.SIGTERM)
    (tmp_path / "release-0").touch()
    wait_until(lambda: is_training(1), timeout_s=240)
    os.kill(pid_of(tmp_path, "lost", "ps/0"), signal.SIGKILL)
    for attempt in (1, 2):
        (tmp_path / f"release-{attempt}").touch()
    result = result_of(process)
    assert result["attempts"] == 3
    assert result["checkpoint"].endswith(f"step-{LONG_STEPS}-a2")
    notes = result["notes"]
    assert any(note.startswith("worker/1 died (attempt 0, step ") for note in notes)
    [left] = [note for note in notes if "had to leave" in note]
    found = re.fullmatch(
        r"ps/0 had to leave \(SIGTERM\): training was restarted from the checkpoint of step (\d+) .*", left
    )
    assert found is not None, left
    assert int(found[1]) > STEPS
    assert any("ps/0 failed" in note and "attempt 1" in note for note in notes), notes
    assert raydist("logs", "lost", "--task", "worker/1").out.count("serves at") >= 1


def test_worker_joins_the_attempt_once_there_is_room(
    running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    def running(name: str) -> set[str]:
        return {one["task"] for one in status_of(tmp_path, name)["tasks"] if one["state"] == "RUNNING"}

    alone = ("--strategy", "one_device", "--workers", "1", "-p", "steps=20")
    other = start(running_ray, tmp_path, job, "other", *alone)
    wait_until(lambda: bool(running("other")), timeout_s=240)
    process = start(running_ray, tmp_path, job, "grown", "--workers", "1:2")
    wait_until(lambda: status_of(tmp_path, "grown")["steps"] > STEPS, timeout_s=240)
    assert running("grown") == {"chief/0", "worker/0", "ps/0"}
    other.send_signal(signal.SIGINT)
    other.communicate(timeout=60)
    wait_until(lambda: "worker/1" in running("grown"), timeout_s=240)
    (tmp_path / "release-0").touch()
    result = result_of(process)
    assert (result["attempts"], result["steps_repeated"]) == (1, 0)
    assert len(result["tasks"]) == 4
    assert any("the cluster has room for 2 workers" in note for note in result["notes"])
