"""ParameterServer as a user runs it: every role an actor of a running Ray, and tasks that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

Raydist = Callable[..., Ended]

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
        # Waits in the second epoch until the test has done what it came for.
        def on_train_batch_end(self, batch, logs=None):
            release = ctx.params["release"]
            while release and ctx.step > ctx.params["steps"] and not Path(release).exists():
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


def test_every_role_does_its_part(raydist: Raydist, job: str) -> None:
    share = ("--cpus", "worker=0.5", "--cpus", "ps=0.5")
    ended = raydist("submit", job, "--evaluator", *share, "--json", "--name", "roles")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["attempts"]) == ("SUCCEEDED", "parameter_server", 1)
    assert (result["steps"], result["steps_repeated"]) == (200, 0)
    assert [task["task"] for task in result["tasks"]] == [
        *("chief/0", "worker/0", "worker/1", "ps/0", "evaluator/0")
    ]
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
    """Starts a run that holds in its second epoch until the file `release` is there."""
    hold = ("-p", f"epochs={EPOCHS}", "-p", f"steps={STEPS}", "-p", f"release={folder / 'release'}")
    return start_raydist(running_ray, folder, "submit", job, "--json", "--name", name, *hold, *options)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    assert (result["state"], result["steps"]) == ("SUCCEEDED", LONG_STEPS)
    return result


def test_killed_worker_is_replaced_while_training_goes_on(
    raydist: Raydist, running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start(running_ray, tmp_path, job, "worker-killed")
    wait_until(lambda: status_of(tmp_path, "worker-killed")["steps"] > STEPS, timeout_s=240)
    before = pid_of(tmp_path, "worker-killed", "worker/1")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: pid_of(tmp_path, "worker-killed", "worker/1") not in (before, None), timeout_s=240)
    (tmp_path / "release").touch()
    result = result_of(process)
    assert result["attempts"] == 1
    [after] = [task for task in result["tasks"] if task["task"] == "worker/1"]
    assert after["pid"] != before
    assert any(note.startswith("worker/1 died (attempt 0, step ") for note in result["notes"])
    assert raydist("logs", "worker-killed", "--task", "worker/1").out.count("serves at") >= 1


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
    (tmp_path / "release").touch()
    result = result_of(process)
    assert (result["attempts"], result["steps_repeated"]) == (1, 0)
    assert len(result["tasks"]) == 4
    assert any("there is room for 2 workers instead of 1" in note for note in result["notes"])


@pytest.mark.exhaustive("chief/0", covered_by="[ps/0], which ends the same way")
@pytest.mark.parametrize("task", ["ps/0", "chief/0"])
def test_death_of_what_holds_the_state_costs_one_attempt(
    raydist: Raydist, running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil, task: str
) -> None:
    process = start(running_ray, tmp_path, job, "lost")
    # After the first epoch's checkpoint, so that there is something to continue from.
    wait_until(lambda: status_of(tmp_path, "lost")["steps"] > STEPS, timeout_s=240)
    os.kill(pid_of(tmp_path, "lost", task), signal.SIGKILL)
    (tmp_path / "release").touch()
    result = result_of(process)
    assert result["attempts"] == 2
    assert result["checkpoint"].endswith(f"step-{LONG_STEPS}-a1")
    assert any(f"{task} failed" in note for note in result["notes"])


def test_server_that_has_to_leave_is_saved_first(
    raydist: Raydist, running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start(running_ray, tmp_path, job, "left")
    wait_until(lambda: status_of(tmp_path, "left")["steps"] > STEPS, timeout_s=240)
    os.kill(pid_of(tmp_path, "left", "ps/0"), signal.SIGTERM)
    (tmp_path / "release").touch()
    result = result_of(process)
    [note] = [note for note in result["notes"] if "had to leave" in note]
    found = re.fullmatch(
        r"ps/0 had to leave \(SIGTERM\): training was restarted from the checkpoint of step (\d+) .*", note
    )
    assert found is not None, note
    assert int(found[1]) > STEPS


def test_mistake_in_the_train_function_is_one_sentence(raydist: Raydist, job: str) -> None:
    Path(job).write_text(JOB.replace("        training,\n", "        training(),\n"))
    ended = raydist("submit", job, "--json")
    assert ended.code == 2, ended.err
    assert "parameter_server needs a function" in ended.json["error"]["message"]
    assert "Traceback" not in ended.err
