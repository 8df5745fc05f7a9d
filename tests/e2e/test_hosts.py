"""Runs over several hosts, each with its own address, disk and Ray: nothing is shared that raydist does not
share itself, but one folder. And hosts that vanish, are cut off, or slow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Host, Hosts
from tests.support.netns import why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

JOB = """
import os
import socket
import time

import numpy as np
import tensorflow as tf

import raydist
from helper import labels_of


@raydist.job(workers=2, params={"epochs": 2, "hold_at": 0, "release": ""})
def train(ctx: raydist.TrainContext):
    ctx.note(f"{ctx.task} {socket.gethostname()} {os.environ.get('TF_CONFIG')}")
    x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, labels_of(x))).shuffle(160, seed=2).batch(16)

    class Hold(tf.keras.callbacks.Callback):
        # Waits at a step until the test has done what it came for, so that a fault meets a run that trains.
        def on_train_batch_end(self, batch, logs=None):
            while ctx.step >= ctx.params["hold_at"] > 0 and not os.path.exists(ctx.params["release"]):
                time.sleep(0.05)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss)
    ctx.fit(model, data, epochs=ctx.params["epochs"], callbacks=[Hold()])
    ctx.report({"norm": float(sum(np.abs(w).sum() for w in model.get_weights()))}, step=ctx.step)
"""
HELPER = "def labels_of(x):\n    return (x[:, 0] > 0).astype('int64')\n"
EPOCH = 10  # steps


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts with a CPU each, so that two tasks need both."""
    with Hosts.started(1, 1) as hosts:
        hosts.head.write("code/helper.py", HELPER)
        yield hosts


def submit(hosts: Hosts, name: str, *arguments: str, job: str = JOB) -> subprocess.Popen[str]:
    """Submits the job from a folder that only the first host has."""
    path = hosts.head.write("code/job.py", job)
    address = ("--address", f"{hosts.head.address}:6379")
    return hosts.raydist("submit", path, "--json", "--name", name, *address, *arguments)


def result_of(process: subprocess.Popen[str], *, code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_run_over_two_hosts_needs_nothing_but_common_storage(hosts: Hosts) -> None:
    head, other = hosts.all
    result = result_of(submit(hosts, "two", "--storage", str(hosts.shared)))
    assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 2 * EPOCH, 1)
    assert {task["host"] for task in result["tasks"]} == {head.address, other.address}
    addresses = [task["address"] for task in result["tasks"]]
    told = dict(note.split(" ", 2)[1:] for note in result["notes"] if note.startswith("worker/"))
    assert told.keys() == {"host-1", "host-2"}
    for config in told.values():
        assert json.loads(config)["cluster"] == {"worker": addresses}
    run = hosts.shared / "two"
    assert {path.name for path in (run / "logs" / "0").iterdir()} == {"worker-0", "worker-1"}
    assert {path.name.split("-")[2] for path in (run / "metrics").iterdir()} == {"0", "1"}
    assert Path(result["checkpoint"]).joinpath("_COMMITTED").exists()
    assert [leftovers(host) for host in hosts.all] == [[], []]


def leftovers(host: Host) -> list[str]:
    """Returns what runs and lies about on a host of raydist's tasks."""
    scratch = host.machine.inside(host.disk / "tmp" / "raydist-0")
    folders = [path.name for path in scratch.iterdir()] if scratch.exists() else []
    return [*map(str, host.task_pids()), *folders]
