"""raydist.run(datasets=...) from a script: Ray Data streams to the workers, through a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Raydist, RunningRay

pytestmark = pytest.mark.slow

JOB = """
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"epochs": 3, "name": "train"})
def train(ctx: raydist.TrainContext):
    data = ctx.dataset(ctx.params["name"]).to_tf("x", "y", batch_size=16)

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    ctx.fit(model, data, epochs=ctx.params["epochs"])
    ctx.report({"bias": float(model.get_weights()[1][0])}, step=ctx.step)
"""

SCRIPT = """
import json
import sys
import time

import numpy as np
import ray

import raydist

address, storage, data, do = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
if do == "write":
    x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
    ray.data.from_numpy(x).map_batches(
        lambda batch: {"x": batch["data"], "y": batch["data"].sum(axis=1, keepdims=True) + 1}
    ).write_parquet(data)
    raise SystemExit

datasets = {"train": ray.data.read_parquet(data)}
ask = json.loads(do)
told = {}
try:
    handle = raydist.submit("job.py", storage=storage, datasets=datasets, address=address, **ask)
    result = handle.result(timeout=120)
    told = {
        "state": result.state.value,
        "attempts": result.attempts,
        "steps": result.steps,
        "metrics": dict(result.metrics),
    }
except raydist.RaydistError as error:
    told["error"] = str(error)
from ray._private import state
deadline = time.monotonic() + 15
while True:  # a killed actor is dead in a moment, and a controller ends after it has recorded the end
    told["coordinators"] = sum(
        one["ActorClassName"] == "SplitCoordinator" and one["State"] != "DEAD"
        for one in state.actors().values()
    )
    if not told["coordinators"] or time.monotonic() > deadline:
        break
    time.sleep(0.2)
print(json.dumps(told))
"""


def call(running_ray: RunningRay, folder: Path, data: Path, do: str) -> Any:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "job.py").write_text(JOB)
    return running_ray.told_by(folder, "script.py", running_ray.address, folder / "runs", data, do)


@pytest.fixture(scope="module")
def data(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    call(running_ray, folder, folder / "data", "write")
    return folder / "data"


@pytest.fixture
def script(running_ray: RunningRay, data: Path, tmp_path: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Runs the script with what `raydist.submit` is to be given; returns what it told."""
    return lambda do: call(running_ray, tmp_path, data, json.dumps(do))


def test_resume_needs_the_datasets_again(script: Any, raydist: Raydist, tmp_path: Path) -> None:
    assert script({"name": "again", "params": {"epochs": 1}})["state"] == "SUCCEEDED"
    ended = raydist("resume", "again", "--storage", str(tmp_path / "runs"))
    assert ended.code == 2
    assert 'raydist.run(job, name="again", resume=True, datasets={"train": ...})' in ended.err
    more = script({"name": "again", "resume": True, "params": {"epochs": 2}})
    assert (more["state"], more["steps"]) == ("SUCCEEDED", 40)


def test_detached_run_reads_what_it_was_given(script: Any) -> None:
    told = script({"name": "far", "detach": True, "params": {"epochs": 1}})
    assert (told["state"], told["steps"], told["coordinators"]) == ("SUCCEEDED", 20, 0)


def test_unknown_name_is_told_with_those_there_are(script: Any) -> None:
    told = script({"name": "unknown", "params": {"name": "trian"}})
    assert "ctx.dataset got 'trian', which the run was not given; did you mean train?" in told["error"]
    refused = script({"name": "ps", "strategy": "parameter_server", "ps": 1})
    assert "under parameter_server no worker runs the train function" in refused["error"]
