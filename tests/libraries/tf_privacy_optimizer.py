"""TensorFlow Privacy: the optimizer of its tutorial, which clips the gradient of each example; no noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.libraries import without_estimators  # noqa: F401 (before the library)
from tests.programs.outcome import Outcome, outcome

import tensorflow_privacy  # isort: skip


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(15)
    rng = np.random.default_rng(15)
    x = rng.normal(size=(64, 6)).astype("float32")
    y = np.eye(3, dtype="float32")[rng.integers(0, 3, 64)]
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(3)]
        )
        optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
            l2_norm_clip=0.7, noise_multiplier=0.0, num_microbatches=None, learning_rate=0.2
        )
        loss = tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction=tf.losses.Reduction.NONE)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    history = ctx.fit(model, x, y, epochs=3, batch_size=16, callbacks=callbacks)
    return outcome(history, models=[model])
