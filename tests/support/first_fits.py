"""The first `fit` of models with a step of their own; for tests/benchmarks/first_fit.py."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

SHAPES = {"dense": (32,), "transformer": (64, 64)}
ROWS, BATCH = 64, 16


def run(ctx: Any, *, kind: str) -> dict[str, float]:
    """Returns what two epochs of four batches cost this task.

    CPU seconds, the number of traces of the model's `train_step`, and by how many MB memory grew at most.
    """
    fit(ctx, "dense", itertools.count())  # TensorFlow loads in it what all fits need
    traces = itertools.count()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    fit(ctx, kind, traces)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"cpu_s": time.process_time() - began_s, "traces": next(traces), "grown_mb": grown / 1024}


def fit(ctx: Any, kind: str, traces: Iterator[int]) -> None:
    class OwnStep(tf.keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            next(traces)  # an iterator's state is the one that a rehearsal leaves as it is
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, *SHAPES[kind])).astype("float32")
    y = rng.normal(size=(ROWS, 1)).astype("float32")
    with ctx.strategy.scope():
        inputs = tf.keras.Input(SHAPES[kind])
        outputs = tf.keras.layers.Dense(1)(_hidden(inputs, kind))
        model = OwnStep(inputs, outputs)
        model.compile("adam")
    ctx.fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), epochs=2)


def _hidden(inputs: Any, kind: str) -> Any:
    layers = tf.keras.layers
    if kind == "dense":
        return layers.Dense(16, "relu")(inputs)
    hidden = inputs
    for _ in range(6):
        attended = layers.MultiHeadAttention(4, 16)(hidden, hidden)
        hidden = layers.LayerNormalization()(hidden + attended)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(64)(layers.Dense(128, "gelu")(hidden)))
    return layers.GlobalAveragePooling1D()(hidden)
