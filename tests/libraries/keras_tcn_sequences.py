"""keras-tcn: a temporal convolutional network that reads the value at a place in a sequence."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from tcn import TCN

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(17)
    rng = np.random.default_rng(17)
    x = rng.normal(size=(50, 12, 1)).astype("float32")
    y = x[:, 6]
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((12, 1)),
                TCN(nb_filters=4, kernel_size=3, dilations=(1, 2, 4), use_layer_norm=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5), loss="mse")
    history = ctx.fit(model, x, y, epochs=3, batch_size=16, validation_split=0.2, callbacks=callbacks)
    return outcome(history, models=[model])
