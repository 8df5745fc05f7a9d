"""A base class's own steps, as TensorFlow Recommenders has them: they return `loss`, and none is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras


class LogOfSum(keras.metrics.Sum):  # type: ignore[misc]
    """Is minus infinity without an update."""

    def result(self) -> Any:
        return tf.math.log(super().result())


class Ratings(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.rating = keras.layers.Dense(1)
        self.error = keras.metrics.RootMeanSquaredError(name="error")
        self.not_updated = LogOfSum(name="total_loss")

    def call(self, features: Any) -> Any:
        return self.rating(self.hidden(features))

    def loss_of(self, data: Any) -> Any:
        x, y = data
        predicted = self(x)
        self.error.update_state(y, predicted)
        return tf.reduce_mean(tf.square(y - predicted))

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"error": self.error.result(), "loss": loss, "total_loss": loss}

    def test_step(self, data: Any) -> Any:
        loss = self.loss_of(data)
        return {"error": self.error.result(), "loss": loss, "total_loss": loss}


class LossAlone(Ratings):
    """Returns just what Keras 3 has a metric for."""

    def train_step(self, data: Any) -> Any:
        return {"loss": super().train_step(data)["loss"]}

    def test_step(self, data: Any) -> Any:
        return {"loss": super().test_step(data)["loss"]}


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(27)
    x = rng.normal(size=(45, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    values: dict[str, Any] = {}
    models = []
    for make in (Ratings, LossAlone):
        keras.utils.set_random_seed(27)
        with ctx.strategy.scope():
            model = make()
            model.compile(optimizer=keras.optimizers.Adam(0.05, epsilon=1e-5))
        stopping = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e-6)
        history = ctx.fit(model, data, epochs=3, validation_data=data, callbacks=[stopping, *callbacks])
        values |= {f"{make.__name__} {name}": one for name, one in history.history.items()}
        found = ctx.evaluate(model, data)
        values |= {f"{make.__name__} {name} of evaluate": [one] for name, one in found.items()}
        models.append(model)
    return outcome(values, models=models)
