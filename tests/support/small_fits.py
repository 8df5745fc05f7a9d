"""Trains several models of two layers one after another; for tests/benchmarks/small_fits.py."""

from __future__ import annotations

import cProfile
import pstats
import time
from typing import Any

import numpy as np
import tensorflow as tf

# The calls that most of a fit is spent in. Tracing contains some of the waiting: for the replicas' threads.
PARTS = {
    "tracing": "func_graph_from_py_func",
    "running graphs, after TensorFlow has optimized them": "TFE_Py_Execute",
    "single operations, such as reading a variable": "TFE_Py_FastPathExecute",
    "waiting for other threads, such as those of replicas": "'acquire' of '_thread.lock'",
}


def run(ctx: Any, *, num_fits: int, is_profiled: bool = False) -> dict[str, Any]:
    """Returns the seconds of each fit, and those of the parts of all but the first where it is profiled."""
    seconds = [fit(ctx)]
    profile = cProfile.Profile()
    for _ in range(num_fits - 1):
        seconds.append(profile.runcall(fit, ctx) if is_profiled else fit(ctx))
    return {"seconds": seconds, "parts": parts_of(profile) if is_profiled else {}}


def fit(ctx: Any) -> float:
    """Returns the seconds that two epochs of four batches take."""
    layers = tf.keras.layers
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)])
        model.compile("adam", loss="mse", metrics=["mae"])
    began_s = time.perf_counter()
    ctx.fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(16), epochs=2)
    return time.perf_counter() - began_s


def parts_of(profile: cProfile.Profile) -> dict[str, float]:
    """Returns the seconds of each of PARTS, and of all."""
    stats = pstats.Stats(profile)
    calls = stats.stats.items()  # type: ignore[attr-defined]
    found = {
        part: sum(one[3] for (_, _, name), one in calls if piece in name) for part, piece in PARTS.items()
    }
    return {**found, "all": stats.total_tt}  # type: ignore[attr-defined]
