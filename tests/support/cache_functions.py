"""Train functions for tests of `Dataset.cache(path)`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import flat
from tests.support.train_functions import examples, made

keras = tf.keras


def cached(ctx: Any, *, folder: str | None) -> dict[str, Any]:
    """Trains on data that are cached in a file, or in none; counts how often the map was called."""
    import keras

    calls = []

    def count(number: np.float64) -> np.float64:
        calls.append(int(number))
        return number

    def mapped(x: Any, y: Any) -> Any:
        one = tf.numpy_function(count, [np.float64(1)], tf.float64)
        return x * tf.ensure_shape(one, []), y

    path = None if folder is None else f"{folder}/a [b]/cache"
    keras.utils.set_random_seed(3)
    x, y = examples(40)
    data = tf.data.Dataset.from_tensor_slices((x.astype("float64"), y)).map(mapped)
    data = data.batch(8) if path is None else data.cache(path).batch(8)
    model = made(ctx, "sgd")
    ctx.fit(model, data, epochs=3)
    weights = flat(model)
    return {"weights": weights, "calls": len(calls), "files": _files(folder)}


def killed_while_it_writes(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Begins to write a cache, tells so, and waits to be killed."""
    data = iter(tf.data.Dataset.range(1000).cache(f"{folder}/cache"))
    next(data)
    Path(folder, "begun").touch()
    time.sleep(300)
    return {}


def cached_again(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Returns what comes from a path where another process has begun, and from one where one has ended."""
    before = _files(folder)
    again = [int(one) for one in tf.data.Dataset.range(5).cache(f"{folder}/cache")]
    whole = [int(one) for one in tf.data.Dataset.range(9).cache(f"{folder}/whole")]
    return {"again": again, "whole": whole, "before": before, "after": _files(folder)}


def _files(folder: str | None) -> list[str]:
    return [] if folder is None else sorted(path.name for path in Path(folder).rglob("*") if path.is_file())
