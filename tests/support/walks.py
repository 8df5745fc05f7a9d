"""Trainings that tell which functions of raydist/training they enter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import raydist.training

TRAINING = raydist.training.__path__[0] + "/"
Function = tuple[str, str]  # a file below raydist/training, and the function's qualified name


class _Stopped(Exception):
    pass


def first_update(ctx: Any) -> dict[str, Any]:
    return {"entered": entered(lambda: _fit(ctx, "mse", stop_after=1))}


def loss_of_own_mean(ctx: Any) -> dict[str, Any]:
    import tensorflow as tf

    def mean_of_part(y: Any, predicted: Any) -> Any:
        return tf.reduce_mean(tf.square(y - predicted))

    return {"entered": entered(lambda: _fit(ctx, mean_of_part, stop_after=1))}


def resumed_inside_of_an_epoch(ctx: Any) -> dict[str, Any]:
    from tests.support.inside import run_of

    _fit(ctx, "mse", stop_after=2)
    run_of(ctx).checkpoints.finish()
    return {"entered": entered(lambda: _fit(ctx, "mse", stop_after=1))}


def _fit(ctx: Any, loss: Any, *, stop_after: int) -> None:
    import tensorflow as tf

    class Stop(tf.keras.callbacks.Callback):
        num_steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.num_steps == stop_after:
                raise _Stopped

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("adam", loss)
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(64, seed=3).batch(16)
    try:
        ctx.fit(model, data, epochs=2, callbacks=[Stop()])
    except _Stopped:
        pass


def entered(call: Callable[[], None]) -> list[Function]:
    """Returns the functions that a call enters, in that order."""
    found: list[Function] = []

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(TRAINING):
            found.append((code.co_filename.removeprefix(TRAINING), code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found
