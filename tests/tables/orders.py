"""Runs sequences of calls on a model, in a task or in plain Keras."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

SIZE = 16
# Small steps: a masked mean of each half is not that of the whole, and weights would drift apart.
RATE = 1e-3


def run_sequences(ctx: Any, *, sequences: list[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """Returns what each call of a loss's sequence shows, and the weights after it.

    A sequence whose calls have another loss in parentheses compiles the model with that loss before the call.
    """
    found = {}
    for loss, calls in sequences:
        program = _Program(ctx, loss)
        shown = [program.call(call) for call in calls]
        found[f"{loss} {' '.join(calls)}"] = [np.ravel(one).tolist() for one in (*shown, program.weights())]
    return found


class _Program:
    def __init__(self, ctx: Any, loss: str) -> None:
        self._ctx, self._loss, self._keras = ctx, loss, tf.keras
        rng = np.random.default_rng(5)
        self._x = rng.normal(size=(36, 3)).astype("float32")
        self._y = rng.normal(size=(36, 1)).astype("float32")
        self._data = tf.data.Dataset.from_tensor_slices((self._x, self._y)).batch(SIZE)
        keras = self._keras
        with ctx.strategy.scope():
            self._model = keras.Sequential(
                [
                    keras.layers.Dense(
                        4, "tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=3)
                    ),
                    keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4)),
                ]
            )
        self.compile()

    def call(self, name: str) -> Any:
        name, _, loss = name.partition("(")
        if loss:
            self._loss = loss.rstrip(")")
            self.compile()
        return getattr(self, name.replace("ctx.", "of_context_"))()

    def weights(self) -> Any:
        return np.concatenate([np.ravel(one) for one in self._model.get_weights() or [np.zeros(0)]])

    def compile(self) -> Any:
        with self._ctx.strategy.scope():
            self._model.compile(self._keras.optimizers.SGD(RATE), _losses()[self._loss], metrics=["mae"])
        return 0.0

    def build(self) -> Any:
        if not self._model.built:  # Keras refuses another shape than that of a batch
            self._model.build((None, 3))
        return self.weights()

    def evaluate(self) -> Any:
        return self._model.evaluate(self._data, verbose=0)

    def fit(self) -> Any:
        history = self._model.fit(self._data, validation_data=self._data, verbose=0).history
        return [value for name in sorted(history) for value in history[name]]

    def predict(self) -> Any:
        return self._model.predict(self._x, batch_size=SIZE, verbose=0)

    def train_on_batch(self) -> Any:
        return self._model.train_on_batch(self._x[:SIZE], self._y[:SIZE])

    def save_and_load(self) -> Any:
        self.build()
        with tempfile.TemporaryDirectory() as folder, self._ctx.strategy.scope():
            path = str(Path(folder, "model.keras"))
            self._model.save(path)
            self._model = self._keras.models.load_model(path, custom_objects=_losses())
        return self.weights()

    def set_weights(self) -> Any:
        self.build()
        self._model.set_weights([0.9 * one for one in self._model.get_weights()])
        return self.weights()

    def of_context_fit(self) -> Any:
        history = self._ctx.fit(self._model, self._data, epochs=1, validation_data=self._data).history
        return [value for name in sorted(history) for value in history[name]]

    def of_context_evaluate(self) -> Any:
        logs = self._ctx.evaluate(self._model, self._data)
        return [logs[name] for name in sorted(logs)]

    def of_context_predict(self) -> Any:
        return self._ctx.predict(self._model, self._data.map(lambda x, y: x))


@functools.cache
def _losses() -> dict[str, Any]:
    """Returns losses by name; all but the first are one number for a batch."""

    def mean(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred))

    def masked_mean(y_true: Any, y_pred: Any) -> Any:
        mask = tf.cast(y_true > -0.7, y_pred.dtype)
        return tf.reduce_sum(tf.square(y_true - y_pred) * mask) / tf.reduce_sum(mask)

    def sum(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.square(y_true - y_pred))

    return {"mse": "mse", "mean": mean, "masked_mean": masked_mean, "sum": sum}
