"""Models that predict without a fit before; layers and steps of some compare the examples of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inside import forget_notes, notes_of

keras = tf.keras

# What is named in the note on each; None where there is none.
NAMED = {
    "centred": "layers centred",
    "centred behind BatchNormalization": "layers centred",
    "counted": "layers counted",
    "ranked": "layers ranked",
    "slightly": "layers model",
    "unbuilt": "layers unbuilt",
    "step": "layers with_step",
    "attention over time": None,
    "half precision": None,
    "classes": None,
    "own draws": None,
}
NUM_ROWS = 8


def predicted(ctx: Any, name: str, batch_size: int = NUM_ROWS) -> dict[str, Any]:
    """Returns the notes of `predict` and `predict_on_batch`, and what the former returns."""
    shape = (NUM_ROWS, 5, 4) if name == "attention over time" else (NUM_ROWS, 4)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = _made(name, shape[1:])
    forget_notes(ctx)
    rows = model.predict(x, batch_size=batch_size, verbose=0)
    notes = notes_of(ctx)
    model.predict(x, batch_size=batch_size, verbose=0)
    model.predict_on_batch(x)
    return {"rows": rows, "notes": notes, "is_noted_once": notes == notes_of(ctx)}


def _made(name: str, shape: tuple[int, ...]) -> Any:
    if name == "unbuilt":
        return _Unbuilt(name=name)
    inputs = keras.Input(shape)
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    if name.endswith("BatchNormalization"):
        hidden = keras.layers.BatchNormalization()(hidden)
    if name in ("step", "classes"):
        steps = {"step": _WithStep, "classes": _Classes}
        return steps[name](inputs, hidden, name="with_step")
    of_layer = {
        "attention over time": _Attention,
        "counted": _Counted,
        "half precision": _Attention,
        "own draws": _Drawing,
        "ranked": _Ranked,
        "slightly": _Slightly,
    }
    dtype = "mixed_float16" if name == "half precision" else None
    layer = of_layer.get(name, _Centred)(name=name.partition(" ")[0], dtype=dtype)
    return keras.Model(inputs, keras.layers.Dense(1)(layer(hidden)), name="model")


class _Centred(keras.layers.Layer):  # type: ignore[misc, name-defined]
    def call(self, inputs: Any) -> Any:
        return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)


class _Slightly(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """Less than what half precision rounds."""

    def call(self, inputs: Any) -> Any:
        return inputs - 0.001 * tf.reduce_mean(inputs, axis=0, keepdims=True)


class _Counted(keras.layers.Layer):  # type: ignore[misc, name-defined]
    def call(self, inputs: Any) -> Any:
        return inputs / tf.cast(tf.shape(inputs)[0], inputs.dtype)


class _Ranked(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """Similarity to the other examples, as contrastive models have it."""

    def call(self, inputs: Any) -> Any:
        return tf.nn.softmax(tf.matmul(inputs, inputs, transpose_b=True)) @ inputs


class _Attention(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """Over the last axis but one of each example."""

    def call(self, inputs: Any) -> Any:
        each = inputs if len(inputs.shape) == 3 else inputs[:, tf.newaxis]
        found = tf.nn.softmax(tf.matmul(each, each, transpose_b=True)) @ each
        return tf.reshape(found, tf.shape(inputs))


class _Drawing(keras.layers.Layer):  # type: ignore[misc, name-defined]
    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs))


class _WithStep(keras.Model):  # type: ignore[misc, name-defined]
    def predict_step(self, data: Any) -> Any:
        rows = super().predict_step(data)
        return rows / tf.reduce_max(tf.abs(rows))


class _Classes(keras.Model):  # type: ignore[misc, name-defined]
    def predict_step(self, data: Any) -> Any:
        return tf.argmax(super().predict_step(data), axis=-1)


class _Unbuilt(keras.Model):  # type: ignore[misc, name-defined]
    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        rows = self.dense(inputs)
        return rows - tf.reduce_mean(rows, axis=0, keepdims=True)
