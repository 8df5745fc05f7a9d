"""`pip install raydist[client]`: a machine without TensorFlow submits to a cluster, watches and stops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.installing import install
from tests.support.ray_heads import RayHead, ray_head

REPOSITORY = Path(__file__).parents[2]
LEFT_OUT = ("tensorflow", "keras", "tf_keras", "pandas", "sklearn")
JOBS = """
import time

import numpy as np
import tensorflow as tf


def fit(ctx):
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((32, 2), "float32"), np.ones((32, 1), "float32")))
    ctx.fit(model, lambda _: data.batch(8), epochs=2)


def sleep(ctx):
    ctx.report({"loss": 1.0}, step=1)
    time.sleep(600)
"""


@dataclass(frozen=True, kw_only=True)
class Client:
    """An environment that has what a client needs, and code/jobs.py."""

    folder: Path
    head: RayHead

    def raydist(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / "raydist"), *arguments],
            cwd=self.folder / "code",
            env={**self.head.environ, "RAY_ADDRESS": self.head.address},
            capture_output=True,
            text=True,
            timeout=200,
        )


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with ray_head(num_cpus=2) as head:
        yield head


@pytest.fixture(scope="module")
def client(head: RayHead, tmp_path_factory: pytest.TempPathFactory) -> Client:
    if len(Path("/proc/net/route").read_text().splitlines()) < 2:
        pytest.skip("pip installs the client here, and this machine or worker of pytest-xdist has no network")
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install(folder / "bin" / "python", "-e", f"{REPOSITORY}[client]")
    (folder / "code").mkdir()
    (folder / "code" / "jobs.py").write_text(JOBS)
    return Client(folder=folder, head=head)


def test_client_has_no_tensorflow_and_is_small(client: Client) -> None:
    doctor = client.raydist("doctor", "--json")
    versions = {one["what"]: one["text"] for one in json.loads(doctor.stdout)["findings"]}
    assert versions["tensorflow"].startswith("none: runs can be submitted from here")
    [folder] = client.folder.glob("lib/*/site-packages")
    names = {path.name for path in folder.iterdir()}
    assert names.isdisjoint(LEFT_OUT)


def test_run_is_submitted_and_read(client: Client, tmp_path: Path) -> None:
    storage = ("--storage", str(tmp_path))
    submitted = client.raydist("submit", "jobs.py:fit", "--workers", "2", "--name", "far", "--json", *storage)
    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout)["state"] == "SUCCEEDED"
    assert json.loads(client.raydist("status", "far", "--json", *storage).stdout)["steps"] == 8
    assert "loss" in client.raydist("metrics", "far", *storage).stdout


def test_detached_run_is_watched_and_stopped(client: Client, tmp_path: Path) -> None:
    storage = ("--storage", str(tmp_path))
    submitted = client.raydist(
        "submit", "jobs.py:sleep", "--workers", "2", "--name", "far", "--detach", *storage
    )
    assert submitted.returncode == 0, submitted.stderr
    assert client.raydist("stop", "far", *storage).returncode == 0
    assert json.loads(client.raydist("status", "far", "--json", *storage).stdout)["state"] == "CANCELLED"
