"""TensorFlow Privacy: a DPSequential, whose train_step clips the gradient of each example; without noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.libraries import without_estimators  # noqa: F401 (before the library)
from tests.programs.outcome import Outcome, outcome

import tensorflow_privacy  # isort: skip


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(16)
    rng = np.random.default_rng(16)
    x = rng.normal(size=(64, 6)).astype("float32")
    y = rng.integers(0, 3, 64)
    with ctx.strategy.scope():
        model = tensorflow_privacy.DPSequential(
            l2_norm_clip=0.7,
            noise_multiplier=0.0,
            use_xla=False,
            layers=[
                tf.keras.Input((6,)),
                tf.keras.layers.Dense(8, activation="relu"),
                tf.keras.layers.Dense(3),
            ],
        )
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.2),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = ctx.fit(model, x, y, epochs=3, batch_size=16, callbacks=callbacks)
    return outcome(history, models=[model])
