"""What a train function returns reaches each way to a run's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, RunningRay
from tests.e2e.test_python_api import told_by

SCRIPT = """
import json
import sys

import raydist

address, storage = sys.argv[1:]


def train(ctx):
    import keras
    import numpy as np
    import tensorflow as tf

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([2, 2]), tf.ones([2, 1])))
    history = ctx.fit(model, data, epochs=2)
    return {
        "by": str(ctx.task),
        "history": history,
        "kernel": model.layers[0].kernel,
        "tensor": tf.constant([[1, 2]], tf.int64),
        "scalar": tf.constant(0.5),
        "pair": (float("inf"), np.float32(2.0)),
        "api_key": "hush",
    }


def lost(ctx):
    return {"model": object()}


def shown(result):
    value = result.value
    return {
        **{name: value[name] for name in ("by", "scalar", "api_key", "pair")},
        "losses": len(value["history"]["loss"]),
        "kernel": [str(value["kernel"].dtype), *value["kernel"].shape],
        "tensor": [str(value["tensor"].dtype), *value["tensor"].tolist()],
    }


options = {"address": address, "storage": storage}
told = {"run": shown(raydist.run(train, name="blocking", workers=2, **options))}
told["attached"] = shown(raydist.attach("blocking", storage=storage).result())
detached = raydist.submit(train, name="detached", workers=1, detach=True, **options)
told["detached"] = shown(detached.result(timeout=300))
result = raydist.run(lost, name="lost", workers=1, **options)
told["lost"] = [result.value, [note for note in result.notes if "returned" in note]]
print(json.dumps(told))
"""


@pytest.mark.slow
def test_value_is_the_same_however_a_run_is_seen(
    running_ray: RunningRay, raydist: Callable[..., Ended], tmp_path: Path
) -> None:
    told = told_by(SCRIPT, running_ray, tmp_path)
    value = {
        "by": "worker/0",
        "scalar": 0.5,
        "api_key": "***",
        "pair": [float("inf"), 2.0],
        "losses": 2,
        "kernel": ["float32", 2, 1],
        "tensor": ["int64", [1, 2]],
    }
    assert told["run"] == told["attached"] == told["detached"] == value
    lost, [note] = told["lost"]
    assert lost is None
    assert note.startswith("what the train function returned is not kept, as its ['model'] is a object; ")
    status = raydist("status", "blocking", "--json", "--storage", str(tmp_path / "runs")).json
    assert status["value"]["pair"] == {"$tuple": [{"$float": ".inf"}, 2.0]}
    assert status["value"]["kernel"]["$array"]["shape"] == [2, 1]
