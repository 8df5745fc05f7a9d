"""Train functions whose loss becomes infinite and NaN after a few steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist.errors import NonFiniteError
from tests.support.equal_state_functions import _data, _step
from tests.support.inside import notes_of

keras = tf.keras


def _model(ctx: Any, dtype: str) -> Any:
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="last", dtype=dtype)])
        model.compile(keras.optimizers.SGD(1e20), "mse")  # overflows in float32 at the second step
    return model


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
