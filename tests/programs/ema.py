"""An exponential moving average of the weights, which takes their place at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def houses(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(23)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, (np.sin(x).sum(axis=1, keepdims=True) * 3).astype("float32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(23)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
                layers.BatchNormalization(trainable=False),
                layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, use_ema=True, ema_momentum=0.8)
        model.compile(optimizer, loss="mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices(houses(93)).shuffle(93, seed=23).batch(32)
    test = tf.data.Dataset.from_tensor_slices(houses(45)).batch(32)
    history = ctx.fit(model, data, epochs=3, validation_data=test, callbacks=callbacks)
    return outcome(history, models=[model])
