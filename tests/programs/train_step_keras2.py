"""The guide "Customizing what happens in fit" as TensorFlow 2.2 to 2.15 had it, for a model that is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Keras2Model(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Keras3Model(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compute_metrics(x=x, y=y, y_pred=y_pred, sample_weight=None)
        return {m.name: m.result() for m in self.metrics}


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(36)
    rng = np.random.default_rng(36)
    x = rng.random((77, 8), dtype="float32")
    y = (x.sum(axis=1, keepdims=True) > 4).astype("float32")
    with ctx.strategy.scope():
        inputs = keras.Input(shape=(8,))
        hidden = layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
        outputs = layers.Dense(1, activation="sigmoid")(hidden)
        model = (Keras3Model if hasattr(keras, "ops") else Keras2Model)(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC(name="auc")],
        )
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    history = model.fit(data, epochs=3, callbacks=[*callbacks, *ctx.callbacks()], verbose=0)
    return outcome(history, models=[model])
