"""Train functions whose loss becomes infinite and NaN after a few steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import NonFiniteError
from tests.support.inside import notes_of

keras = tf.keras


def _model(ctx: Any, dtype: str) -> Any:
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="last", dtype=dtype)])
        model.compile(keras.optimizers.SGD(1e20), "mse")  # overflows in float32 at the second step
    return model


def _data() -> Any:
    x = np.random.default_rng(1).normal(size=(32, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)


def diverge(ctx: Any, *, how: str, dtype: str = "float32") -> dict[str, Any]:
    """Trains by `how`; returns the error's sentence, and what was noted."""
    model = _model(ctx, dtype)
    error = ""
    try:
        if how == "ctx.fit":
            ctx.fit(model, _data(), epochs=2)
        elif how == "model.fit":
            model.fit(_data(), epochs=2, verbose=0)
        elif how == "train_steps":
            ctx.train_steps(_step(model), _data().repeat(), num_steps=8)
        else:
            for step in range(1, 4):
                ctx.report({"loss": 1.0 if step < 2 else float("nan")}, step=step)
    except NonFiniteError as raised:
        error = str(raised)
    return {"error": error, "notes": notes_of(ctx)}


def _step(model: Any) -> Any:
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.square(y - model(x))[:, 0], global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    return step
