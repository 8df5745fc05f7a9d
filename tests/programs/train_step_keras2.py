"""The guide "Customizing what happens in fit" as TensorFlow 2.2 to 2.15 had it, for a model that is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Keras2Steps:
    def train_step(self: Any, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        x, y = data
        y_pred = self(x, training=False)
        self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Keras3Steps:
    def train_step(self: Any, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x=x, y=y, y_pred=y_pred, sample_weight=None)


Steps = Keras3Steps if hasattr(keras, "ops") else Keras2Steps


class FunctionalModel(Steps, keras.Model):
    pass


class SubclassedModel(Steps, keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))
        self.last = layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any) -> Any:
        return self.last(self.first(inputs))


def functional() -> Any:
    inputs = keras.Input(shape=(8,))
    first = layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))
    return FunctionalModel(inputs, layers.Dense(1, activation="sigmoid")(first(inputs)))


def built() -> Any:
    model = SubclassedModel()
    model.build((None, 8))
    return model


def called() -> Any:
    model = SubclassedModel()
    model(np.zeros((2, 8), "float32"))
    return model


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(36)
    rng = np.random.default_rng(36)
    x = rng.random((77, 8), dtype="float32")
    y = (x.sum(axis=1, keepdims=True) > 4).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    models, history = [], {}
    for make in (functional, built, called):
        with ctx.strategy.scope():
            model = make()
            model.compile(
                optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
                loss="binary_crossentropy",
                metrics=["accuracy", keras.metrics.AUC(name="auc")],
            )
        options = {"validation_data": data, "epochs": 2}
        if make is functional:  # as a script has it
            fit = model.fit(data, callbacks=[*callbacks, *ctx.callbacks()], verbose=0, **options)
        else:
            fit = ctx.fit(model, data, callbacks=callbacks, **options)
        history |= {f"{make.__name__} {name}": values for name, values in fit.history.items()}
        models.append(model)
    return outcome(history, models=models)
