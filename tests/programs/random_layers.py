"""Models with layers that draw random numbers, which convnet_regularized.py and others train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def train_layers(ctx: Any, make_layers: Any, shape: Sequence[int], *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(28)
    x = np.random.default_rng(28).random((61, *shape), dtype="float32")
    y = (x.reshape(len(x), -1).mean(axis=1) > 0.5).astype("float32")
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input(shape), *make_layers(), layers.Dense(1, activation="sigmoid")])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="binary_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    history = ctx.fit(model, data, epochs=1, callbacks=callbacks)
    return outcome(history, models=[model])
