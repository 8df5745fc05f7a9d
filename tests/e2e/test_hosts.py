"""Runs over several hosts, each with its own address, disk and Ray: nothing is shared that raydist does not
share itself, but one folder. And hosts that vanish, are cut off, or slow."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.support.hosts import Host, Hosts
from tests.support.netns import why_unavailable
from tests.support.processes import PATIENCE
from tests.support.scripts import FOLDER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
]

JOB = """
import os
import socket
import time

import numpy as np
import tensorflow as tf

import raydist
from helper import labels_of


@raydist.job(workers=2, params={"epochs": 2, "pause_s": 0.0, "hold_at": 0, "release": ""})
def train(ctx: raydist.TrainContext):
    ctx.note(f"{ctx.task} {socket.gethostname()} {os.environ.get('TF_CONFIG')}")
    x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, labels_of(x))).shuffle(160, seed=2).batch(16)

    class Hold(tf.keras.callbacks.Callback):
        # Waits at a step until the test has done what it came for, so that a fault meets a run that trains.
        def on_epoch_begin(self, epoch, logs=None):
            self.num_before = 10 * epoch

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(ctx.params["pause_s"])
            is_held = self.num_before + batch + 1 >= ctx.params["hold_at"] > 0
            while is_held and not os.path.exists(ctx.params["release"]):
                time.sleep(0.05)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss)
    ctx.fit(model, data, epochs=ctx.params["epochs"], callbacks=[Hold()])
    ctx.report({"norm": float(sum(np.abs(w).sum() for w in model.get_weights()))}, step=ctx.step)
"""
# Continues long enough for what is done beside it.
QUICK_JOB = """
import time

import raydist


@raydist.job(workers=1)
def train(ctx: raydist.TrainContext):
    time.sleep(5)
"""
# Has Ray announce that the host of an address is about to be taken away, as a cloud does.
DRAIN = """
import sys, ray
head, address = sys.argv[1] + ":6379", sys.argv[2]
ray.init(head, log_to_driver=False)
[node] = [one["NodeID"] for one in ray.nodes() if one["NodeManagerAddress"] == address]
reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
limit = ("--deadline-remaining-seconds", "600")
from ray.scripts.scripts import cli
cli(["drain-node", "--address", head, "--node-id", node, *reason, *limit])
"""
HELPER = "def labels_of(x):\n    return (x[:, 0] > 0).astype('int64')\n"
EPOCH = 10  # steps


@contextlib.contextmanager
def started(*num_cpus: int, **options: bool) -> Iterator[Hosts]:
    with Hosts.started(*num_cpus, **options) as hosts:
        hosts.head.write("code/helper.py", HELPER)
        yield hosts


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts with a CPU each, so that two tasks need both."""
    with started(1, 1) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def calm_hosts() -> Iterator[Hosts]:
    """The same for tests that end neither of them, with IPv6 only."""
    with started(1, 1, is_ipv6=True) as hosts:
        yield hosts


def submit(hosts: Hosts, name: str, *arguments: str, job: str = JOB) -> subprocess.Popen[str]:
    """Submits the job from a folder that only the first host has."""
    path = hosts.head.write("code/job.py", job)
    address = ("--address", hosts.head.gcs_address)
    return hosts.raydist("submit", path, "--json", "--name", name, *address, *arguments)


HELD_AT = EPOCH + 3


def submit_held(hosts: Hosts, name: str, *arguments: str, job: str = JOB) -> subprocess.Popen[str]:
    """Submits a run that waits in its second epoch, after its first checkpoint, until it is released."""
    held = ("-p", f"hold_at={HELD_AT}", "-p", f"release={hosts.shared / 'release'}")
    return submit(hosts, name, "--storage", str(hosts.shared), *held, *arguments, job=job)


def host_of(hosts: Hosts, run: str, *, other_than: Host) -> Host:
    """Returns a host that has a task of the run, and is not that one."""
    addresses = {task["host"] for task in hosts.status(run)["tasks"]} - {other_than.address}
    return next(host for host in hosts.all if host.address in addresses)


def drain(hosts: Hosts, host: Host) -> None:
    done = hosts.head.popen(sys.executable, "-c", DRAIN, hosts.head.address, host.address)
    assert done.wait(60 * PATIENCE) == 0


def result_of(process: subprocess.Popen[str], *, code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=200 * PATIENCE)
    assert process.returncode == code, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_run_over_two_hosts_needs_nothing_but_common_storage_and_a_slow_link(calm_hosts: Hosts) -> None:
    head, other = calm_hosts.all
    other.slow(delay_s=0.02, loss=0.05)
    result = result_of(submit(calm_hosts, "two", "--storage", str(calm_hosts.shared)))
    other.heal()
    assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 2 * EPOCH, 1)
    assert {task["host"] for task in result["tasks"]} == {head.address, other.address}
    addresses = [task["address"] for task in result["tasks"]]
    told = dict(note.split(" ", 2)[1:] for note in result["notes"] if note.startswith("worker/"))
    assert told.keys() == {"host-1", "host-2"}
    for config in told.values():
        assert json.loads(config)["cluster"] == {"worker": addresses}
    asked = ("metrics", "two", "--local", "--format", "json", "--storage", str(calm_hosts.shared))
    told = result_of(calm_hosts.raydist(*asked))["metrics"]
    first = {row["task"]: row["loss"] for row in told if row["step"] == 1}  # later ones twice a second
    assert first.keys() == {"worker/0", "worker/1"}
    assert first["worker/0"] != first["worker/1"]
    run = calm_hosts.shared / "two"
    assert {path.name for path in (run / "logs" / "0").iterdir()} == {"worker-0", "worker-1"}
    assert {path.name.split("-")[2] for path in (run / "metrics").iterdir()} == {"0", "1"}
    assert Path(result["checkpoint"]).joinpath("_COMMITTED").exists()
    assert [leftovers(host) for host in calm_hosts.all] == [[], []]


def test_next_run_removes_what_a_dead_driver_left_on_hosts_that_it_does_not_use(
    calm_hosts: Hosts, wait_until: WaitUntil
) -> None:
    hosts = calm_hosts
    for host in hosts.all:
        left = host.machine.inside(host.disk / "tmp" / "raydist-0" / "dead-0-worker-0-0a1b2c3d-0")
        left.parent.mkdir(mode=0o700, exist_ok=True)
        left.mkdir()
        (left / "lock").write_text("99999")
        os.utime(left, (time.time() - 3600,) * 2)
    process = submit(hosts, "next", "--storage", str(hosts.shared), "--workers", "1", job=QUICK_JOB)
    wait_until(lambda: [leftovers(host) for host in hosts.all] == [[], []], timeout_s=60)
    assert len(result_of(process)["tasks"]) == 1


def test_doctor_looks_at_each_host_and_at_the_links_between_them(calm_hosts: Hosts) -> None:
    hosts = calm_hosts
    address = hosts.head.gcs_address
    own_disk = str(hosts.head.disk / "runs")
    told = result_of(
        hosts.raydist("doctor", "--json", "--address", address, "--storage", own_disk),
        code=3,  # a host's disk has 512 MB
    )
    found = {(one["host"], one["what"]): one for one in told["findings"]}
    head, other = (host.address for host in hosts.all)
    for host, next_host in ((head, other), (other, head)):
        assert f"MB/s to {next_host}" in found[host, "network"]["text"]
        assert found[host, "network"]["is_ok"]
        assert "GFLOP/s" in found[host, "devices"]["text"]
        assert "TMPDIR" in found[host, "disk"]["text"]
        assert found[host, "clock"]["is_ok"]
    assert found[head, "storage"]["is_ok"]
    assert found[other, "storage"]["exit_code"] == 4
    assert "host host-2 does not see the storage" in found[other, "storage"]["text"]


def test_storage_that_another_host_does_not_see_is_refused_and_names_it(calm_hosts: Hosts) -> None:
    hosts = calm_hosts
    private = str(hosts.head.disk / "runs")
    result = result_of(submit(hosts, "private", "--storage", private), code=4)
    assert hosts.all[1].address in result["error"]["message"]
    assert [leftovers(host) for host in hosts.all] == [[], []]


SCRIPT = """
import os
import sys

import keras
import numpy as np

own, shared = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
callbacks = [keras.callbacks.ModelCheckpoint(f"{folder}/best.keras") for folder in (own, shared)]
model.fit(x, x.sum(axis=1), batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
model.save(f"{own}/last.keras")
for path in (f"{own}/best.keras", f"{shared}/best.keras", f"{own}/last.keras"):
    print("loaded", float(np.sum(keras.models.load_model(path).predict(x, verbose=0))))
"""


def test_worker_of_a_host_that_does_not_see_the_chiefs_file_writes_it_there(calm_hosts: Hosts) -> None:
    hosts = calm_hosts
    common = hosts.shared / "common"
    common.mkdir()
    for host in hosts.all:  # of an earlier run: what is read must not be this
        host.write("own/best.keras", "old")
    path = hosts.head.write("code/train.py", SCRIPT)
    address = ("--address", hosts.head.gcs_address, "--storage", str(hosts.shared))
    arguments = ("--workers", "2", "--", hosts.head.disk / "own", common)
    result = result_of(hosts.raydist("submit", path, "--json", "--name", "files", *address, *arguments))
    assert result["steps"] == 8
    logs = hosts.shared / "files" / "logs" / "0"
    printed = [
        [float(line.split()[-1]) for file in sorted(folder.iterdir()) for line in _loaded_in(file)]
        for folder in sorted(logs.iterdir())
    ]
    assert len(printed) == 2
    assert printed[0] == pytest.approx(printed[1], rel=1e-6)
    assert printed[0] == pytest.approx([printed[0][0]] * 3)
    for host in hosts.all:
        assert sorted(one.name for one in host.machine.inside(host.disk / "own").iterdir()) == [
            "best.keras",
            "last.keras",
        ]
    assert [one.name for one in common.iterdir()] == ["best.keras"]


def _loaded_in(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if "loaded" in line]


@pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs redis-server: apt-get install redis-server"
)
def test_detached_run_goes_on_when_its_head_is_lost_and_comes_back_with_its_redis(
    wait_until: WaitUntil,
) -> None:
    with started(0, 2, with_redis=True) as hosts:
        process = submit_held(hosts, "far", "--detach")
        assert result_of(process)["state"] == "STARTING"
        wait_until(lambda: hosts.status("far")["steps"] >= EPOCH, timeout_s=120)
        hosts.head.kill()
        (hosts.shared / "release").touch()
        hosts.replace_head(num_cpus=0)
        wait_until(lambda: hosts.status("far")["state"] == "SUCCEEDED", timeout_s=240)
        status = hosts.status("far")
        assert (status["steps"], status["attempts"]) == (2 * EPOCH, 2)
        assert any("taken up again as attempt 1" in note for note in status["notes"])
        wait_until(lambda: [leftovers(host) for host in hosts.all] == [[], []], timeout_s=90)


def leftovers(host: Host) -> list[str]:
    """Returns what runs and lies about on a host of raydist's tasks."""
    scratch = host.machine.inside(host.disk / "tmp" / "raydist-0")
    folders = [path.name for path in scratch.iterdir()] if scratch.exists() else []
    return [*map(str, host.task_pids()), *folders]


def titles(host: Host) -> list[str]:
    """Returns the names of raydist's processes there, but for its agents."""
    found = []
    for process in (host.machine.root / "proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            name = process.read_bytes().rstrip(b"\0").decode()
            found += [name] if name.startswith("raydist::") else []
    return found


def checkpoints(hosts: Hosts, run: str) -> set[str]:
    """Returns the names of the run's committed checkpoints."""
    return {path.parent.name for path in (hosts.shared / run / "checkpoints").glob("*/_COMMITTED")}


def test_killed_host_costs_an_attempt_that_goes_on_where_there_is_room(
    hosts: Hosts, wait_until: WaitUntil
) -> None:
    process = submit_held(hosts, "killed")
    wait_until(lambda: hosts.status("killed")["steps"] >= HELD_AT, timeout_s=240)
    (spare,) = hosts.add(1)
    victim = host_of(hosts, "killed", other_than=hosts.head)
    victim.kill()
    (hosts.shared / "release").touch()
    result = result_of(process)
    assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 2 * EPOCH, 2)
    assert {task["host"] for task in result["tasks"]} == {hosts.head.address, spare.address}
    (note,) = [note for note in result["notes"] if "retried" in note]
    assert f"its host {victim.address} does not answer any more" in note
    assert checkpoints(hosts, "killed") == {f"step-{EPOCH}-a0", f"step-{2 * EPOCH}-a1"}
    # Of a task that was killed another process removes the folder, a moment later.
    wait_until(lambda: [leftovers(host) for host in (hosts.head, spare)] == [[], []])


def test_standby_goes_on_in_the_place_of_a_host_that_is_cut_off(wait_until: WaitUntil) -> None:
    with started(1, 1) as hosts:
        process = submit_held(hosts, "standby", "--standby", "1", "--keep-warm", "0")
        wait_until(lambda: hosts.status("standby")["steps"] >= HELD_AT, timeout_s=240)
        victim = host_of(hosts, "standby", other_than=hosts.head)
        (spare,) = hosts.add(1)
        wait_until(lambda: titles(spare) == ["raydist::fork-server"], timeout_s=60)
        victim.cut()
        (hosts.shared / "release").touch()
        result = result_of(process)
        assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 2 * EPOCH, 2)
        assert {task["host"] for task in result["tasks"]} == {hosts.head.address, spare.address}
        (note,) = [note for note in result["notes"] if "standby" in note]
        assert note.endswith(" was lost, and a standby has taken its place")
        # The one that was cut off ends by itself.
        for host in hosts.all:
            wait_until(lambda host=host: titles(host) == host.task_pids() == leftovers(host) == [])


def test_run_leaves_a_host_that_is_drained_with_its_last_step(hosts: Hosts, wait_until: WaitUntil) -> None:
    slowly = ("--checkpoint-every", "1000", "-p", "epochs=4", "-p", "pause_s=0.5")
    process = submit_held(hosts, "drained", *slowly)
    wait_until(lambda: hosts.status("drained")["steps"] >= HELD_AT, timeout_s=240)
    (spare,) = hosts.add(1)
    drain(hosts, host_of(hosts, "drained", other_than=hosts.head))
    (hosts.shared / "release").touch()
    result = result_of(process)
    assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 4 * EPOCH, 2)
    assert {task["host"] for task in result["tasks"]} == {hosts.head.address, spare.address}
    (note,) = [note for note in result["notes"] if "had to leave" in note]
    assert " (its host is drained): training was restarted from the checkpoint of step " in note
    assert int(note.partition("checkpoint of step ")[2].partition(" ")[0]) >= HELD_AT


def test_script_with_a_handler_of_preemptions_leaves_a_host_that_is_drained(
    hosts: Hosts, wait_until: WaitUntil
) -> None:
    script = hosts.head.write("code/preemption.py", (FOLDER / "preemption.py").read_text())

    def train(name: str, hold_at: int) -> tuple[subprocess.Popen[str], Path]:
        (folder := hosts.shared / f"{name}-files").mkdir()
        options = ("--workers", "2", "--max-failures", "0", "--storage", str(hosts.shared))
        arguments = ("--address", f"{hosts.head.address}:6379", "--", folder, str(hold_at))
        submitted = ("submit", script, "--json", "--name", name, *options, *arguments)
        return hosts.raydist(*submitted), folder

    process, folder = train("drained", hold_at=10)
    steps = [folder / f"steps-{worker}.txt" for worker in (0, 1)]
    wait_until(lambda: all(one.exists() and "10" in one.read_text().split() for one in steps), timeout_s=240)
    (spare,) = hosts.add(1)
    drain(hosts, host_of(hosts, "drained", other_than=hosts.head))
    (folder / "release").touch()
    result = result_of(process)
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2)
    assert {task["host"] for task in result["tasks"]} == {hosts.head.address, spare.address}
    (note,) = [note for note in result["notes"] if "had to leave" in note]
    assert note.endswith(" had to leave (its host is drained): training was restarted")
    assert [one.read_text().split() for one in steps] == [[*map(str, range(1, 31))]] * 2  # none is repeated
    undisturbed, other = train("undisturbed", hold_at=0)
    result_of(undisturbed)
    assert (folder / "weights-0.npy").read_bytes() == (other / "weights-0.npy").read_bytes()


def test_chief_that_is_cut_off_for_a_minute_ends_and_does_no_harm(wait_until: WaitUntil) -> None:
    num_steps = 10 * EPOCH
    with started(1, 2) as hosts:
        alone = ("--workers", "1", "--cpus", "worker=2", "--storage", str(hosts.shared))
        process = submit(hosts, "cut", *alone, "-p", "epochs=10", "-p", "pause_s=0.5")
        wait_until(lambda: hosts.status("cut")["steps"] > EPOCH, timeout_s=240)
        (spare,) = hosts.add(2)
        cut = hosts.all[1]
        cut.cut()
        cut_at_s = time.monotonic()
        before = checkpoints(hosts, "cut")
        # It trains on, and saves to the storage that it still reaches, until it has heard nothing for 30 s.
        wait_until(lambda: checkpoints(hosts, "cut") - before, timeout_s=240)
        wait_until(lambda: cut.task_pids() == [], timeout_s=240)
        time.sleep(max(0.0, cut_at_s + 60 - time.monotonic()))
        cut.heal()
        result = result_of(process)
        assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", num_steps, 2)
        assert result["checkpoint"].endswith(f"step-{num_steps}-a1")
        assert [task["host"] for task in result["tasks"]] == [spare.address]
        assert [leftovers(host) for host in hosts.all] == [[], [], []]


PS_JOB = """
import os
import time

import numpy as np
import tensorflow as tf

import raydist
from helper import labels_of


@raydist.job(strategy="parameter_server", workers=1, ps=1, params={"hold_at": 0, "release": ""})
def train(ctx: raydist.TrainContext):
    def data():
        x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, labels_of(x))).batch(16).repeat()

    class Hold(tf.keras.callbacks.Callback):
        # What was scheduled already continues, but no more than this epoch's steps.
        def on_train_batch_end(self, batch, logs=None):
            while ctx.step >= ctx.params["hold_at"] > 0 and not os.path.exists(ctx.params["release"]):
                time.sleep(0.05)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss)
    ctx.fit(model, data, epochs=3, steps_per_epoch=100, callbacks=[Hold()])
"""


@pytest.mark.exhaustive("1", covered_by="[0]")
@pytest.mark.parametrize("standby", ["0", "1"])
def test_worker_whose_host_is_killed_comes_back_on_another_one(standby: str, wait_until: WaitUntil) -> None:
    with started(2, 3) as hosts:  # the worker, with its three CPUs, has the second host for itself
        process = submit_held(hosts, "ps", "--cpus", "worker=3", "--standby", standby, job=PS_JOB)
        wait_until(lambda: hosts.status("ps")["steps"] >= HELD_AT, timeout_s=240)
        (spare,) = hosts.add(3)
        wait_until(lambda: titles(spare) == ["raydist::fork-server"] * int(standby))
        if standby == "0":  # a notice costs no attempt, and the worker trains until its host is gone
            drain(hosts, hosts.all[1])
        hosts.all[1].kill()
        (hosts.shared / "release").touch()
        result = result_of(process)
        assert (result["state"], result["steps"], result["attempts"]) == ("SUCCEEDED", 300, 1)
        workers = [task["host"] for task in result["tasks"] if task["task"] == "worker/0"]
        assert workers == [spare.address]
        assert any("a standby has taken its place" in note for note in result["notes"]) == (standby == "1")
        assert any("back at another address after" in note for note in result["notes"])
        # Of a task that was killed another process removes the folder, a moment later.
        wait_until(lambda: [leftovers(host) for host in (hosts.head, spare)] == [[], []])


MOVING_PS_JOB = """
import os
import time

import numpy as np
import tensorflow as tf

import raydist
from helper import labels_of


@raydist.job(strategy="parameter_server", workers=1, ps=1, params={"by": "", "told": ""})
def train(ctx: raydist.TrainContext):
    def data():
        x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, labels_of(x))).batch(16).repeat()

    def tell(step):
        # Until 10 steps after the move.
        time.sleep(0.05)
        with open(f"{ctx.params['told']}-{ctx.attempt}", "a") as file:
            file.write(f"{step}\\n")
            return ctx.attempt > 0 and file.tell() > 10 * len(f"{step}\\n")

    class Tell(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = tell(ctx.step)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss_of)
        model.optimizer.build(model.trainable_variables)

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    @tf.function
    def step_on_worker(iterator):
        ctx.strategy.run(train_step, args=(next(iterator),))

    if ctx.params["by"] == "fit":
        ctx.fit(model, data, epochs=1, steps_per_epoch=100_000, callbacks=[Tell()])
    else:
        state = {"model": model, "optimizer": model.optimizer}
        iterator = iter(ctx.coordinator.create_per_worker_dataset(data))
        step, is_moved = ctx.restore(**state) or 0, False
        while not is_moved:
            ctx.coordinator.schedule(step_on_worker, args=(iterator,))
            ctx.coordinator.join()
            step += 1
            is_moved = tell(step)
            if ctx.wants_save():
                ctx.save(step=step, **state)
    ctx.report({"updates": model.optimizer.iterations}, step=ctx.step)
"""


@pytest.mark.parametrize("by", ["fit", "coordinator"])
def test_ps_moves_from_a_drained_host_with_the_last_step(by: str, wait_until: WaitUntil) -> None:
    with started(2, 3) as hosts:  # the ps, with its three CPUs, has the second host for itself
        alone = ("--storage", str(hosts.shared), "--cpus", "ps=3")
        told = hosts.shared / "told"
        process = submit(hosts, "moved", *alone, "-p", f"by={by}", "-p", f"told={told}", job=MOVING_PS_JOB)

        def steps(attempt: int) -> list[int]:
            path = told.with_name(f"told-{attempt}")
            return [int(line) for line in path.read_text().split()] if path.exists() else []

        def trains() -> bool:
            assert process.poll() is None, process.communicate()
            return len(steps(0)) >= 10

        wait_until(trains, timeout_s=240)
        (spare,) = hosts.add(3)
        drain(hosts, hosts.all[1])
        result = result_of(process)
        assert (result["state"], result["attempts"], result["steps_repeated"]) == ("SUCCEEDED", 2, 0)
        assert [task["host"] for task in result["tasks"] if task["task"] == "ps/0"] == [spare.address]
        assert [*steps(0), *steps(1)] == list(range(1, int(result["metrics"]["updates"]) + 1))
        (note,) = [note for note in result["notes"] if "had to leave" in note]
        assert note.startswith("ps/0 had to leave (its host is drained): training was restarted")
