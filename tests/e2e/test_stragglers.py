"""A worker that the others wait for is named with its cause, or gets less of each batch."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, status_of

JOB = """
import os
import time

import numpy as np
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"slowed": "", "calm": ""})
def train(ctx: raydist.TrainContext):
    slowed = ctx.params["slowed"] if str(ctx.task) == "worker/1" else ""

    def is_slowed(by):
        return slowed == by and not os.path.exists(ctx.params["calm"])

    def read(x):
        time.sleep(0.5 if is_slowed("data") else 0.0)
        return x

    def compute(x):
        time.sleep(0.02 * len(x) if is_slowed("rows") else 0.0)
        end_s = time.thread_time() + (0.2 if is_slowed("compute") else 0.02)
        while time.thread_time() < end_s:
            pass
        return x

    class Work(tf.keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(compute, [x], tf.float32), x.shape)

        def compute_output_shape(self, shape):
            return shape

    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
    data = data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(read, [x], tf.float32), x.shape), y))
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), Work(), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss)
    ctx.fit(model, data.repeat(), epochs=1, steps_per_epoch=1_000_000)
"""


@contextlib.contextmanager
def busy_host(pid: int) -> Iterator[None]:
    """Keeps a process on one CPU, on which others compute that come first."""
    cpus, niceness = os.sched_getaffinity(pid), os.getpriority(os.PRIO_PROCESS, pid)
    cpu = max(cpus)

    def keep_on(allowed: set[int], *, niceness: int) -> None:
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            # Only root may take it back.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.sched_setaffinity(thread, allowed)
                os.setpriority(os.PRIO_PROCESS, thread, niceness)

    program = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    burners = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    keep_on({cpu}, niceness=min(19, niceness + 6) if os.geteuid() == 0 else niceness)
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        with contextlib.suppress(FileNotFoundError):
            keep_on(cpus, niceness=niceness)


@pytest.mark.exhaustive(
    "another process on its host", "compute", covered_by="training/test_collective_clock.py; tests/stragglers"
)
@pytest.mark.slow
@pytest.mark.parametrize("cause", ["data", "compute", "another process on its host"])
def test_slow_worker_is_named_with_its_cause_until_it_is_as_fast_as_the_others(
    raydist: Callable[..., Ended], tmp_path: Path, wait_until: WaitUntil, cause: str
) -> None:
    (tmp_path / "code").mkdir()
    job, calm = tmp_path / "code" / "job.py", tmp_path / "calm"
    job.write_text(JOB)
    params = ("-p", f"slowed={cause}", "-p", f"calm={calm}")
    detached = raydist("submit", str(job), "--name", "s", "--detach", "--no-export", *params)
    assert detached.code == 0, detached.err

    def stragglers() -> list[tuple[str, str, bool]]:
        told = status_of(tmp_path, "s")
        assert told["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"), (told["error"], told["notes"])
        return [(one["task"], one["cause"], one["is_over"]) for one in told["stragglers"]]

    try:
        with contextlib.ExitStack() as stack:
            if cause.startswith("another"):
                wait_until(lambda: status_of(tmp_path, "s")["steps"] > 5, timeout_s=180)
                pids = {one["task"]: one["pid"] for one in status_of(tmp_path, "s")["tasks"]}
                stack.enter_context(busy_host(pids["worker/1"]))
            wait_until(lambda: ("worker/1", cause, False) in stragglers(), timeout_s=600)
            told = status_of(tmp_path, "s")
            [note] = [one for one in told["notes"] if one.startswith("worker/1 is ") and cause in one]
            waits = {one["task"]: one["collective_wait"] for one in told["tasks"]}
            assert waits["worker/0"] > waits["worker/1"]
            shown = raydist("status", "s").out
            assert f"straggler: {note}" in shown
            calm.touch()
        wait_until(lambda: all(is_over for _, _, is_over in stragglers()), timeout_s=600)
        assert "straggler: worker/1 is as fast as the others again" in raydist("status", "s").out
        assert note in status_of(tmp_path, "s")["notes"]
    finally:
        assert raydist("stop", "s").code == 0


@pytest.mark.slow
def test_slow_worker_gets_less_of_each_batch(
    raydist: Callable[..., Ended], tmp_path: Path, wait_until: WaitUntil
) -> None:
    (tmp_path / "code").mkdir()
    job = tmp_path / "code" / "job.py"
    job.write_text(JOB)
    options = ("--shares", "auto", "-p", "slowed=rows", "--detach", "--no-export")
    detached = raydist("submit", str(job), "--name", "s", *options)
    assert detached.code == 0, detached.err
    try:
        wait_until(lambda: "% of each batch" in str(status_of(tmp_path, "s")["notes"]), timeout_s=600)
        told = status_of(tmp_path, "s")
        [restarted] = [one for one in told["notes"] if "training was restarted" in one]
        assert restarted.startswith("the fastest worker computes ")
        [taken] = [one for one in told["notes"] if "% of each batch" in one]
        faster, slower = map(int, re.findall(r"(\d+)%", taken))
        assert faster > slower
    finally:
        assert raydist("stop", "s").code == 0
