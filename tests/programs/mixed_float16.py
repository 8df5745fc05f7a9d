"""The guide "Mixed precision": float16 with loss scaling; one example of a batch makes steps overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(21)
    x = rng.normal(size=(count, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1)
    # Their gradients are not finite in float16 at the first loss scales. One is in the first half of a batch,
    # the other in the second half of the next one.
    x[3] = x[60] = 600.0
    return x, y


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(21)
    keras.mixed_precision.set_global_policy("mixed_float16")
    with ctx.strategy.scope():
        inputs = keras.Input(shape=(6,), name="digits")
        x = layers.Dense(8, activation="relu", name="dense_1")(inputs)
        x = layers.Dense(8, activation="relu", name="dense_2")(x)
        x = layers.Dense(3, name="dense_logits")(x)
        outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
        model = keras.Model(inputs=inputs, outputs=outputs)
        model.compile(
            loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.SGD(0.01), metrics=["accuracy"]
        )
    data = tf.data.Dataset.from_tensor_slices(examples(93)).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
