"""`raydist profile` on runs that continue, and after their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage, open_run
from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, status_of
from tests.support.profiles import events_of, steps_of
from tests.support.slow_job import write_slow_job

pytestmark = pytest.mark.slow

LONG = ("-p", "epochs=100", "-p", "pause_s=0.2")
# Keras's own loop, and no word of raydist.
SCRIPT = """
import time

import numpy as np
import tensorflow as tf

class Pace(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
    model.compile("adam", loss="mse")
data = tf.data.Dataset.from_tensors((np.ones([8, 6]), np.ones([8, 2]))).repeat(1000)
model.fit(data, epochs=1, callbacks=[Pace()], verbose=2)
"""


def test_profile_of_a_live_run_is_kept(
    raydist: Callable[..., Ended], tmp_path: Path, wait_until: WaitUntil
) -> None:
    detached = raydist("submit", write_slow_job(tmp_path), "--name", "slow-1", "--detach", *LONG)
    assert detached.code == 0, detached.err
    wait_until(lambda: status_of(tmp_path, "slow-1")["steps"] >= 2, timeout_s=300)
    storage = open_run(str(tmp_path / "raydist_runs"), run="slow-1")
    try:
        chief = raydist("profile", "slow-1", "--steps", "5", "--json")
        assert chief.code == 0, chief.err
        found = chief.json
        assert (found["run"], found["task"], found["steps"]) == ("slow-1", "worker/0", 5)
        check_profile(storage, "worker/0", first_step=found["first_step"], steps=5)
        other = raydist("profile", "@latest", "--task", "worker/1", "--steps", "3")
        assert other.code == 0, other.err
        assert other.out.startswith("worker/1: 3 steps (")
        assert f"The profile is in {tmp_path}/raydist_runs/slow-1/tensorboard/worker-1/" in other.out
        check_profile(storage, "worker/1", steps=3)
        assert not storage.exists(storage.profile_mail)
        unknown = raydist("profile", "slow-1", "--task", "worker/7")
        assert (unknown.code, "has no task worker/7; it has worker/0, worker/1" in unknown.err) == (2, True)
        late = raydist("profile", "slow-1", "--steps", "1000", "--timeout", "2s")
        assert (late.code, "did not complete 1000 steps within 2 s" in late.err) == (3, True)
        assert not storage.exists(storage.profile_mail)
        steps = status_of(tmp_path, "slow-1")["steps"]
        wait_until(lambda: status_of(tmp_path, "slow-1")["steps"] > steps, timeout_s=30)
        assert status_of(tmp_path, "slow-1")["attempts"] == 1
    finally:
        assert raydist("stop", "slow-1").code == 0
    ended = raydist("profile", "slow-1")
    assert (ended.code, "has ended: CANCELLED" in ended.err) == (2, True)
    nowhere = raydist("profile", "slow-9")
    assert nowhere.code == 2


def check_profile(storage: RunStorage, task: str, *, steps: int, first_step: int | None = None) -> None:
    marks = steps_of(storage, TaskId.parse(task))
    assert marks == list(range(marks[0], marks[0] + steps))
    assert first_step in (None, marks[0])
    assert any("MatMul" in name for name in events_of(storage, TaskId.parse(task)))


@contextmanager
def attached(*arguments: str) -> Iterator[None]:
    """Runs a job in a shell of its own with an embedded Ray."""
    command = [sys.executable, "-m", "raydist.cli.main", "submit", *arguments, "--address", "local"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raydist.cli.main", "profile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs") if request.param == "folder" else str(request.getfixturevalue("s3_uri"))


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
def test_attached_run_and_script_are_profiled(uri: str, tmp_path: Path, wait_until: WaitUntil) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    file = str(tmp_path / "main.py")
    with attached(file, "--workers", "2", "--name", "script-1", "--storage", uri):
        storage = open_run(uri, run="script-1")
        wait_until(lambda: storage.exists(storage.record) and steps_in(storage) > 2, timeout_s=300)
        ended = profile("script-1", "--steps", "4", "--storage", uri)
        assert ended.returncode == 0, ended.stderr
        check_profile(storage, "worker/0", steps=4)


def test_only_the_coordinator_of_parameter_servers_is_profiled(tmp_path: Path, wait_until: WaitUntil) -> None:
    uri = str(tmp_path / "runs")
    file = str(Path(__file__).parents[2] / "jobs" / "cifar.py")
    roles = ("--strategy", "parameter_server", "--workers", "1", "--ps", "1")
    params = ("-p", "epochs=2000", "-p", "data=digits")
    with attached(file, *roles, *params, "--name", "ps-1", "--storage", uri):
        storage = open_run(uri, run="ps-1")
        wait_until(lambda: storage.exists(storage.record) and steps_in(storage) > 2, timeout_s=300)
        refused = profile("ps-1", "--task", "worker/0", "--storage", uri)
        assert refused.returncode == 2
        assert "worker/0 cannot be profiled: under parameter_server the coordinator" in refused.stderr
        ended = profile("ps-1", "--steps", "4", "--storage", uri)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("chief/0: ")
        assert steps_of(storage, TaskId.parse("chief/0"))


def steps_in(storage: RunStorage) -> int:
    try:
        return read_record(storage).steps
    except StorageError:  # read while it was replaced
        return 0
