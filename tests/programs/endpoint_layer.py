"""The endpoint layer of the guide to the Functional API: it takes the targets and adds the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class LogisticEndpoint(layers.Layer):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, logits: Any, targets: Any = None, sample_weight: Any = None) -> Any:
        if targets is not None:
            loss = self.loss_fn(targets, logits, sample_weight)
            self.add_loss(loss)
        return tf.nn.softmax(logits)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(9)
    rng = np.random.default_rng(9)
    x = rng.normal(size=(77, 6)).astype("float32")
    y = keras.utils.to_categorical((x @ rng.normal(size=(6, 3))).argmax(axis=1), 3)
    with ctx.strategy.scope():
        inputs = keras.Input((6,), name="inputs")
        logits = layers.Dense(3)(layers.Dense(8, activation="tanh")(inputs))
        targets = keras.Input((3,), name="targets")
        preds = LogisticEndpoint(name="predictions")(logits, targets)
        model = keras.Model([inputs, targets], preds)
        model.compile(optimizer=keras.optimizers.SGD(0.5))
    data = tf.data.Dataset.from_tensor_slices({"inputs": x, "targets": y}).shuffle(77, seed=9).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
