"""Train functions with batch normalisation, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import descend, flat, own_step
from tests.support.inside import forget_notes, notes_of

keras = tf.keras


def normalised(ctx: Any, *, norms: Sequence[str], ways: Sequence[str]) -> dict[str, Any]:
    """Trains a small convolutional model in each way; returns weights by norm and way, and the notes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(26, 4, 4, 2)).astype("float32")  # in batches that no two replicas share evenly
    y = x.mean(axis=(1, 2, 3), keepdims=False)[:, None] * 10
    results: dict[str, Any] = {}
    notes = {}
    for norm in norms:
        for way in ways:
            forget_notes(ctx)
            keras.utils.set_random_seed(3)
            with ctx.strategy.scope():
                model = _model(keras, way, synchronized=norm == "synchronized")
                optimizer = keras.optimizers.SGD(0.05)
                if way == "loop":
                    optimizer.build(model.trainable_variables)
                else:
                    model.compile(optimizer, "mse")
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(13)
            if way == "loop":
                ctx.train_steps(_step(model, optimizer), data.repeat(), num_steps=3)
            else:
                model.fit(data.repeat(), steps_per_epoch=3, epochs=1, verbose=0)
            trained = [one.numpy() for one in model.trainable_variables]
            results[f"{norm}, {way}"] = np.concatenate([np.ravel(one) for one in trained])
            notes[f"{norm}, {way}"] = notes_of(ctx)
    return {**results, "notes": notes}


def reducing_layer(ctx: Any) -> dict[str, Any]:
    """Trains by a step of the user's with a layer that takes the mean of all replicas; returns notes too."""

    class Centred(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            mean = tf.reduce_mean(inputs, axis=0)
            context = tf.distribute.get_replica_context()
            return inputs - (mean if context is None else context.all_reduce("MEAN", mean))

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    OwnStep = own_step(keras.Model)
    keras.utils.set_random_seed(3)
    forget_notes(ctx)
    with ctx.strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Activation("tanh")(Centred()(keras.layers.Dense(3)(inputs)))
        model = OwnStep(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.SGD(0.1))
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(12)
    model.fit(data, epochs=2, verbose=0)
    weights = flat(model)
    return {"weights": weights, "notes": notes_of(ctx)}


def _model(keras: Any, way: str, *, synchronized: bool) -> Any:
    OwnStep = own_step(keras.Model)

    def norm() -> Any:
        return keras.layers.BatchNormalization(**({"synchronized": True} if synchronized else {}))

    inputs = keras.Input((4, 4, 2))
    hidden = keras.layers.ReLU()(norm()(keras.layers.Conv2D(3, 3)(inputs)))
    hidden = norm()(keras.layers.Dense(4)(keras.layers.Flatten()(hidden)))
    outputs = keras.layers.Dense(1)(keras.layers.Activation("tanh")(hidden))
    return (OwnStep if way.endswith("step") else keras.Model)(inputs, outputs)


def _step(model: Any, optimizer: Any) -> Any:
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        loss = descend(model, optimizer, lambda: tf.reduce_mean((y - model(x, training=True)) ** 2))
        return {"loss": loss}

    return step
