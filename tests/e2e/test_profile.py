"""`raydist profile` on an attached script, and on the coordinator of parameter servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage, open_run
from tests.conftest import WaitUntil
from tests.support.profiles import check_profile, steps_of

pytestmark = pytest.mark.slow

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


def test_attached_script_is_profiled(tmp_path: Path, wait_until: WaitUntil) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    uri = str(tmp_path / "runs")
    with attached(str(tmp_path / "main.py"), "--workers", "2", "--name", "script-1", "--storage", uri):
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
