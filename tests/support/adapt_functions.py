"""Layers that are adapted to data, in and outside of the scope."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import own_step
from tests.support.inside import notes_of

keras = tf.keras

WORDS = np.array(["red", "green", "blue", "red", "green", "red", "blue", "grey"] * 4)[:, None]
NUMBERS = np.random.default_rng(3).normal(3.0, 2.0, size=(32, 2)).astype("float32")
WHOLE = (NUMBERS[:, :1] > 3.0).astype("int64")


def every_layer(ctx: Any, *, places: list[str]) -> dict[str, Any]:
    """Returns the weights by layer and place where it was adapted, or what was raised."""
    found: dict[str, Any] = {}
    for name, (make, data) in _layers(tf).items():
        for place in places:
            try:
                found[f"{name} {place}"] = _trained(ctx, tf, make, data, place)
            except Exception:
                found[f"{name} {place}"] = traceback.format_exc()[-2000:]
    return {**found, "told": [note for note in notes_of(ctx) if "lookup table" in note]}


def _layers(tf: Any) -> dict[str, tuple[Callable[[], Any], np.ndarray]]:
    layers = tf.keras.layers
    return {
        "Normalization": (layers.Normalization, NUMBERS),
        "Discretization": (lambda: layers.Discretization(num_bins=3, output_mode="one_hot"), NUMBERS[:, :1]),
        "IntegerLookup": (lambda: layers.IntegerLookup(output_mode="multi_hot"), WHOLE),
        "StringLookup": (lambda: layers.StringLookup(output_mode="multi_hot"), WORDS),
        "TextVectorization": (lambda: layers.TextVectorization(output_mode="multi_hot"), WORDS),
    }


def _trained(ctx: Any, tf: Any, make: Callable[[], Any], data: np.ndarray, place: str) -> np.ndarray:
    keras.utils.set_random_seed(7)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8)
    given = dataset if place.endswith("dataset") else data
    kind = tf.string if data.dtype.kind == "U" else data.dtype

    def model_of(layer: Any) -> Any:
        inputs = keras.Input(
            (data.shape[1],), dtype=kind if isinstance(kind, str) else tf.as_dtype(kind).name
        )
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs)))

    layer = None
    if place.startswith("outside"):
        layer = make()
        layer.adapt(given)
    with ctx.strategy.scope():
        layer = layer or make()
        if place == "inside":
            layer.adapt(given)
        if place == "after compile" and data.dtype.kind != "f":
            layer.adapt(given)  # the number of tokens is part of the model
        model = model_of(layer)
        model.compile(keras.optimizers.SGD(0.05), "mse")
    if place == "after compile":
        layer.adapt(given)
    x = tf.constant(data)
    batches = tf.data.Dataset.from_tensor_slices((x, NUMBERS[:, 1:])).batch(8)
    ctx.fit(model, batches, epochs=2)
    return np.concatenate([np.ravel(weight) for weight in model.trainable_weights[0].numpy()])


def with_own_functions(ctx: Any) -> dict[str, np.ndarray]:
    """Returns the weights of models with a vocabulary, by what is the user's own: a loss, a step, neither."""

    OwnStep = own_step(keras.Model)

    def own_loss(y: Any, predicted: Any) -> Any:
        return tf.reduce_mean((y - predicted) ** 2)

    found = {}
    words = tf.constant(WORDS)
    for name, made, loss, is_eager in (
        ("neither", keras.Model, "mse", False),
        ("loss", keras.Model, own_loss, False),
        ("step", OwnStep, None, False),
        ("eager", keras.Model, own_loss, True),
    ):
        keras.utils.set_random_seed(7)
        with ctx.strategy.scope():
            lookup = keras.layers.StringLookup(output_mode="multi_hot")
            lookup.adapt(WORDS)
            inputs = keras.Input((1,), dtype="string")
            model = made(inputs, keras.layers.Dense(1, kernel_initializer="ones")(lookup(inputs)))
            model.compile(keras.optimizers.SGD(0.05), loss, metrics=["mae"], run_eagerly=is_eager)
        batches = tf.data.Dataset.from_tensor_slices((words, NUMBERS[:, 1:])).batch(8)
        ctx.fit(model, batches, epochs=2)
        found[name] = np.ravel(model.trainable_weights[0].numpy())
    return found
