"""The guide "Customizing what happens in fit": a train_step with metrics and a loss of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class CustomModel(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y - y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae_metric]


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(24)
    rng = np.random.default_rng(24)
    x = rng.random((96, 8), dtype="float32")
    y = x.sum(axis=1, keepdims=True)
    with ctx.strategy.scope():
        inputs = keras.Input(shape=(8,))
        outputs = layers.Dense(1)(inputs)
        model = CustomModel(inputs, outputs)
        model.compile(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5))
    # Batches of one size, for 2 and 3 replicas: whatever is wrong here is not a matter of uneven ones.
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(24)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
