"""Virtual replicas through Ray: the bits of one worker after kills, on other numbers of workers and hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Raydist
from tests.support import virtual_functions
from tests.support.hosts import Hosts
from tests.support.netns import why_unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# 20 steps in 2 epochs. What is killed is the worker with the last replicas, in each attempt after a step.
_JOB = """
import hashlib
import json
import os
import signal

import raydist
import virtual_functions


@raydist.job(params={"killed_after": []})
def train(ctx: raydist.TrainContext):
    import tensorflow as tf

    killed_after = ctx.params["killed_after"]
    is_killed = ctx.attempt < len(killed_after) and ctx.strategy.own_replicas.stop == 4

    class Kill(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if is_killed and int(self.model.optimizer.iterations.numpy()) >= killed_after[ctx.attempt]:
                os.kill(os.getpid(), signal.SIGKILL)

    found = virtual_functions.convnet(ctx, callbacks=[Kill()])
    digests = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in found.items()}
    print("BITS", json.dumps(digests))
"""
OPTIONS = ("--json", "--no-export", "--virtual-replicas", "4")


def bits_in(text: str) -> dict[str, str]:
    """Returns a digest of each variable and of the history, by its name, as a task has printed them."""
    [line] = [line for line in text.splitlines() if "BITS" in line]
    found: dict[str, str] = json.loads(line.partition("BITS")[2])
    return found


def test_killed_and_resumed_on_fewer_workers_has_the_bits_of_one_worker(
    raydist: Raydist, tmp_path: Path
) -> None:
    write_job(tmp_path / "code")
    submit = ("submit", "code/job.py", *OPTIONS)
    plain = raydist(*submit, "--name", "plain")
    assert plain.code == 0, plain.err
    expected = bits_in(raydist("logs", "plain", "--task", "worker/0").out)

    def check_equal(run: str, told: dict[str, Any]) -> None:
        assert told["metrics"] == plain.json["metrics"]
        assert bits_in(raydist("logs", run, "--task", "worker/0").out) == expected

    # Continues from memory: there is no checkpoint.
    killed = raydist(
        *(*submit, "--name", "killed", "--workers", "4", "--checkpoint-every", "100000"),
        *("-p", "killed_after=[16]"),
    )
    assert (killed.code, killed.json["attempts"]) == (0, 2), killed.err
    assert any("had in memory" in note for note in killed.json["notes"])
    check_equal("killed", killed.json)

    # Fails in the middle of the second epoch; another number of workers continues from the checkpoint there.
    failed = raydist(
        *(*submit, "--name", "resumed", "--workers", "4", "--checkpoint-every", "5"),
        *("--max-failures", "0", "-p", "killed_after=[18]"),
    )
    assert (failed.code, failed.json["state"]) == (1, "FAILED"), failed.err
    resumed = raydist("resume", "resumed", "--workers", "1", "--json")
    assert resumed.code == 0, resumed.err
    assert any("step 15" in line for line in resumed.err.splitlines()), resumed.err
    check_equal("resumed", resumed.json)


@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_two_hosts_have_the_bits_of_one_worker() -> None:
    with Hosts.started(1, 1) as hosts:
        path = hosts.head.write("code/job.py", _JOB)
        hosts.head.write("code/virtual_functions.py", Path(virtual_functions.__file__).read_text())
        one, two = (run_on(hosts, path, num_workers) for num_workers in (1, 2))
        assert {task["host"] for task in two["tasks"]} == {host.address for host in hosts.all}
        assert two["metrics"] == one["metrics"]
        expected = bits_on(hosts, "on-1", "worker/0")
        assert bits_on(hosts, "on-2", "worker/0") == expected
        assert bits_on(hosts, "on-2", "worker/1") == expected


def write_job(folder: Path) -> None:
    folder.mkdir()
    (folder / "job.py").write_text(_JOB)
    shutil.copy(virtual_functions.__file__, folder)


def run_on(hosts: Hosts, path: Path, num_workers: int) -> dict[str, Any]:
    """Returns the result of a run that has ended."""
    place = ("--address", f"{hosts.head.address}:6379", "--storage", str(hosts.shared))
    workers = ("--name", f"on-{num_workers}", "--workers", str(num_workers))
    process = hosts.raydist("submit", path, *OPTIONS, *workers, *place)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def bits_on(hosts: Hosts, run: str, task: str) -> dict[str, str]:
    process = hosts.raydist("logs", run, "--task", task, "--storage", hosts.shared)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return bits_in(out)
