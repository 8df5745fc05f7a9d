"""A convnet with BatchNormalization and Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(28)
    x = np.random.default_rng(28).random((61, 8, 8, 1), dtype="float32")
    y = (x.mean(axis=(1, 2, 3)) > 0.5).astype("float32")
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dropout(0.5),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="binary_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    return outcome(ctx.fit(model, data, epochs=1, callbacks=callbacks), models=[model])
