"""raydist.run from scripts: a Ray that the script has initialised, and from inside a Ray task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunningRay

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import sys

import ray

import raydist

address, storage = sys.argv[1:]
helper = "imported beside the script"


def train(ctx):
    import sibling  # travels with the script's folder
    import tensorflow as tf

    with ctx.strategy.scope():
        weight = tf.Variable(0.0)
    total = ctx.strategy.reduce("SUM", ctx.strategy.run(lambda: tf.ones(())), axis=None)
    import ray  # in the script's namespace

    shared = ray.get(ray.get_actor("shared").value.remote())
    ctx.report({"replicas": float(total), "sibling": sibling.VALUE, "shared": shared}, step=1)


@ray.remote(num_cpus=0)
class Shared:
    def value(self):
        return 5.0


ray.init(address=address, namespace="mine", log_to_driver=False)
shared = Shared.options(name="shared").remote()
told = {}
result = raydist.run(train, workers=2, storage=storage, name="in-driver")
told["driver"] = {"metrics": dict(result.metrics), "still_connected": ray.is_initialized()}

handle = raydist.submit(train, workers=1, storage=storage, name="by-handle")
told["handle"] = dict(handle.result(timeout=120).metrics)


@ray.remote(num_cpus=0)
def inside():
    return dict(raydist.run(train, workers=2, storage=storage, name="in-task").metrics)


told["task"] = ray.get(inside.remote())
try:
    raydist.run(train, workers=1, storage=storage, name="in-driver")
except raydist.MistakeError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


def told_by(script: str, ray: RunningRay, folder: Path) -> Any:
    """Runs a script, which gets Ray's address and a storage; returns the JSON that it prints last."""
    (folder / "script.py").write_text(script)
    return ray.told_by(folder, "script.py", ray.address, folder / "runs")


def test_run_works_where_ray_was_initialised(running_ray: RunningRay, tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("VALUE = 7.0\n")
    told = told_by(SCRIPT, running_ray, tmp_path)
    others = {"sibling": 7.0, "shared": 5.0}
    assert told["driver"] == {"metrics": {"replicas": 2.0, **others}, "still_connected": True}
    assert told["task"] == {"replicas": 2.0, **others}
    assert told["handle"] == {"replicas": 1.0, **others}
    assert "in-driver" in told["error"]


RUNS_IN_THREADS = """
import json
import os
import signal
import sys
import threading
from pathlib import Path

import raydist

folder = Path(sys.argv[1])
told, ended = [], {}
is_starting = threading.Event()


def train(ctx):
    import time

    ctx.report({"loss": 1.0}, step=1)
    while not Path(ctx.params["until"]).exists():
        time.sleep(0.05)
    if ctx.params["fails"]:
        raise ValueError("on purpose")
    ctx.report({"loss": 0.5}, step=2)


def train_one(name, *, fails=False, on_event=lambda event: None):
    def hook(event):
        if event["event"] == "ray":
            told.append(event["message"])
        on_event(event)

    options = {"workers": 1, "max_failures": 0, "storage": str(folder / "runs")}
    options["resources"] = {"worker": {"cpus": 0.2}}
    params = {"until": str(folder / name), "fails": fails}
    try:
        ended[name] = raydist.run(train, name=name, params=params, on_event=hook, **options).steps
    except BaseException as error:
        ended[name] = type(error).__name__


def interrupt(event):
    if event["event"] == "progress" and event["phase"] == "running":
        os.kill(os.getpid(), signal.SIGINT)


# The first one starts Ray and is the first to end; its thread ends with it.
first = threading.Thread(target=train_one, args=("first",), kwargs={
    "on_event": lambda event: is_starting.set() if event["event"] == "ray" else None
})
first.start()
is_starting.wait()
broken = threading.Thread(target=train_one, args=("broken",), kwargs={"fails": True})
last = threading.Thread(target=train_one, args=("last",))
broken.start()
last.start()
(folder / "first").touch()
first.join()
(folder / "broken").touch()
broken.join()
train_one("interrupted", on_event=interrupt)
(folder / "last").touch()
last.join()

import ray

print(json.dumps({"told": told, "ended": ended, "is_initialized": ray.is_initialized()}))
"""


def test_runs_in_threads_share_an_embedded_ray_until_the_last_one_ends(
    running_ray: RunningRay, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(RUNS_IN_THREADS)
    sessions = Path(f"/tmp/rdt{os.getpid()}")  # short: Ray's sockets lie in it
    sessions.mkdir()
    ended = subprocess.run(
        [sys.executable, "script.py", str(tmp_path)],
        cwd=tmp_path,
        env={**running_ray.environ, "RAY_TMPDIR": str(sessions)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["told"][0].startswith("starting an embedded Ray")
    assert told["told"][1:] == 3 * ["this process's embedded Ray"]
    assert told["ended"] == {
        "first": 2,
        "broken": "TaskFailedError",
        "interrupted": "KeyboardInterrupt",
        "last": 2,
    }
    assert not told["is_initialized"]
    assert list((sessions / "ray").glob("session_*")) == []
    shutil.rmtree(sessions)


AHEAD = """
import json
import os
import sys
import time

import raydist
from raydist.runtime.task.fork_server import servers_here


def train(ctx):
    ctx.report({"parent": os.getppid()}, step=1)


def look(event):
    # No task is started before this returns, so that what is found here was begun by the driver.
    if event["event"] == "ray":
        began_at_s = time.monotonic()
        while not ahead and time.monotonic() - began_at_s < 120:
            time.sleep(0.05)
            ahead.extend(sorted(set(servers_here()) - known))


known, ahead = set(servers_here()), []
address, storage = sys.argv[1:]
options = {"address": address, "storage": storage, "env": {"OF": storage}, "keep_warm": "0"}
result = raydist.run(train, workers=2, on_event=look, **options)
ended_at_s = time.monotonic()
while not servers_here().keys().isdisjoint(ahead):
    assert time.monotonic() - ended_at_s < 20, "the server stays"
    time.sleep(0.1)
print(json.dumps({"parent": result.metrics["parent"], "ahead": ahead}))
"""


def test_tasks_of_a_ray_on_this_host_find_what_the_driver_has_begun_to_import(
    running_ray: RunningRay, tmp_path: Path
) -> None:
    told = told_by(AHEAD, running_ray, tmp_path)
    assert told["ahead"] == [told["parent"]]
