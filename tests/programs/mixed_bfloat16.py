"""The guide "Mixed precision" with bfloat16, which needs no loss scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(22)
    rng = np.random.default_rng(22)
    x = rng.normal(size=(93, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, activation="tanh"),
                layers.Dense(3),
                layers.Activation("softmax", dtype="float32"),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
