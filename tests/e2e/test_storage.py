"""Whole runs on storage that fails: real Ray, TensorFlow, S3 server, disks and mount namespaces."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_storage import open_run
from raydist.storage.segments import read_events
from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, Raydist, RunningRay, start_raydist
from tests.support.disks import behind_another_disk, mounted_disk
from tests.support.faulty_http import Fault, FaultyProxy, HttpRequest, faulty_proxy
from tests.support.metric_rows import read_rows
from tests.support.object_store import new_bucket, s3_environ, s3_server
from tests.support.ray_heads import ray_node
from tests.support.slow_job import write_slow_job

pytestmark = pytest.mark.slow

JOB = """
import numpy as np
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"epochs": 3, "hidden": 8})
def train(ctx: raydist.TrainContext):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=2).batch(16)
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((6,)), tf.keras.layers.Dense(ctx.params["hidden"]), tf.keras.layers.Dense(2)]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1), loss=loss)
    ctx.fit(model, data, epochs=ctx.params["epochs"])
    ctx.report({"norm": float(sum(np.abs(w).sum() for w in model.get_weights()))}, step=ctx.step)
"""
STEPS_PER_EPOCH = 4


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "small.py").write_text(JOB)
    return str(tmp_path / "code" / "small.py")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with s3_server() as endpoint, faulty_proxy(endpoint) as proxy:
        for name, value in s3_environ(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        yield proxy


def test_run_on_s3_that_answers_503_and_500_succeeds(
    proxy: FaultyProxy, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    uri = f"s3://{new_bucket(proxy.endpoint)}/runs"
    faults = (Fault.SLOW_DOWN, Fault.INTERNAL_ERROR)

    def choose(request: HttpRequest) -> Fault | None:
        return faults[request.number // 5 % 2] if request.number % 5 == 0 else None

    proxy.choose = choose
    ended = subprocess.run(
        [BIN / "raydist", "submit", job, "--address", "local", "--storage", uri, "--name", "shaky", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["state"], told["attempts"], told["steps"]) == ("SUCCEEDED", 1, 12)
    assert min(proxy.faults[fault] for fault in faults) >= 5
    pids = [task["pid"] for task in told["tasks"]]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    proxy.choose = lambda request: None
    storage = open_run(uri, run="shaky")
    assert told["checkpoint"] == storage.uri(storage.checkpoint(step=12, attempt=0))
    found = CheckpointStore(storage).latest_whole()
    assert (found.checkpoint and found.checkpoint.step, found.damaged) == (12, ())
    states = [event["state"] for event in read_events(storage) if event["event"] == "state"]
    assert states == ["STARTING", "RUNNING", "STOPPING", "SUCCEEDED"]
    losses = [row.step for row in read_rows(storage) if (row.name, row.scope.value) == ("loss", "global")]
    assert sorted(losses) == [4, 8, 12]


def test_outage_that_lasts_ends_the_run_with_one_error(
    proxy: FaultyProxy, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    uri = f"s3://{new_bucket(proxy.endpoint)}/runs"
    is_out = threading.Event()

    def choose(request: HttpRequest) -> Fault | None:
        if "/step-4-a0/_COMMITTED" in request.path and request.method == "PUT":
            is_out.set()
            return None
        return Fault.SLOW_DOWN if is_out.is_set() else None

    proxy.choose = choose
    ended = subprocess.run(
        [BIN / "raydist", "submit", job, "--address", "local", "--storage", uri, "--name", "out", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    assert ended.returncode == 4, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["state"], told["attempts"]) == ("FAILED", 1)
    assert re.match(r"cannot \w+ s3://.*/out/checkpoints.*, and so for \d+ s; ", told["error"]["message"])
    assert any("run.json is not up to date" in note for note in told["notes"])
    assert "Traceback" not in ended.stderr
    pids = [task["pid"] for task in told["tasks"]]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    proxy.choose = lambda request: None
    found = CheckpointStore(open_run(uri, run="out")).latest_whole()
    assert (found.checkpoint and found.checkpoint.step, found.damaged) == (4, ())


def test_host_that_does_not_see_the_storage_is_exit_code_4(
    raydist: Raydist, running_ray: RunningRay, job: str, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    environ = {name: value for name, value in running_ray.environ.items() if name.startswith("RAY_AUTH")}
    behind = behind_another_disk(tmp_path / "shared")
    with ray_node(running_ray.address, num_cpus=4, behind=behind, **environ):
        options = ("--cpus", "worker=4", "--storage", str(tmp_path / "shared"), "--name", "apart")
        ended = raydist("submit", job, *options, "--json")
    assert ended.code == 4
    error = ended.json["error"]
    assert error["type"] == "StorageError"
    assert error["message"].startswith("host ")
    assert "does not see the storage that the driver writes to" in error["message"]
    assert f"{tmp_path}/shared/apart/token is missing there" in error["message"]
    assert "Traceback" not in ended.err
    assert [task["state"] for task in _record(tmp_path / "shared", "apart")["tasks"]] != ["RUNNING"] * 2


def test_full_disk_ends_the_run_and_resume_goes_on_from_before_a_damaged_checkpoint(
    raydist: Raydist, job: str, tmp_path: Path
) -> None:
    # A checkpoint takes 0.8 MB: the third does not fit.
    options = ("-p", "hidden=22000", "--json")
    whole = raydist("submit", job, *options, "--name", "whole").json
    with mounted_disk(tmp_path / "disk", size="2m") as disk:
        storage = ("--storage", str(disk), "--name", "full")
        ended = raydist("submit", job, *options, *storage)
        assert ended.code == 4, ended.err
        message = ended.json["error"]["message"]
        assert message.startswith(
            f"no space left for the checkpoint {disk}/full/checkpoints/step-12-a0: it takes"
        )
        assert "Traceback" not in ended.err
        found = CheckpointStore(open_run(str(disk), run="full")).latest_whole()
        assert (found.checkpoint and found.checkpoint.step, found.damaged) == (8, ())
        assert _record(disk, "full")["state"] == "FAILED"
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        newest = disk / "full" / "checkpoints" / "step-8-a0"
        largest = max(newest.iterdir(), key=lambda file: file.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:-1])
        again = raydist("submit", job, *options, *storage, "--resume")
        assert again.code == 0, again.err
        assert (again.json["steps"], again.json["attempts"]) == (12, 2)
        (note,) = [note for note in again.json["notes"] if "damaged" in note]
        assert f"{newest} is damaged: {largest.name} has" in note
        assert again.json["metrics"]["norm"] == pytest.approx(whole["metrics"]["norm"], rel=1e-6)


def test_storage_unmounted_and_mounted_anew_is_exit_code_4(
    raydist: Raydist, running_ray: RunningRay, tmp_path: Path, wait_until: WaitUntil
) -> None:
    job = write_slow_job(tmp_path)
    with mounted_disk(tmp_path / "disk", size="8m") as disk:
        arguments = ("submit", job, "-p", "epochs=20", "--storage", str(disk), "--name", "anew", "--json")
        run = start_raydist(running_ray, tmp_path, *arguments)
        wait_until(lambda: list(disk.glob("anew/checkpoints/*/_COMMITTED")), timeout_s=120)
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(disk)], check=True)
        out, err = run.communicate(timeout=120)
        assert run.returncode == 4, err
        assert "the run's storage was lost or replaced during the run" in json.loads(out)["error"]["message"]
        assert list(disk.glob("anew/checkpoints/*")) == []


def _record(storage: Path, run: str) -> dict[str, Any]:
    return json.loads((storage / run / "run.json").read_text())
