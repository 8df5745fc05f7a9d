"""What train functions of tests share. TensorFlow is imported when it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.late import LateModule

tf = LateModule("tensorflow")


class Crashed(Exception):
    """What `crash` raises."""


def crash(keras: Any, hook: str, call: int | None) -> Any:
    """Returns a callback that raises at that call of a hook, counted from 0 over all epochs; None: never."""
    calls = itertools.count()

    def counted(self: Any, index: int, logs: Any = None) -> None:
        if next(calls) == call:
            raise Crashed

    return type("Crash", (keras.callbacks.Callback,), {hook: counted})()


def flat(model: Any) -> np.ndarray:
    """Returns all weights in one array."""
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def refusal(call: Any, *args: Any, **options: Any) -> str:
    """Returns the error that a call ends with; "" where it ends with none."""
    try:
        call(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def descend(model: Any, optimizer: Any, loss_of: Callable[[], Any]) -> Any:
    """Applies the gradients of a loss; returns the loss."""
    with tf.GradientTape() as tape:
        loss = loss_of()
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


def own_step(base: Any) -> Any:
    """Returns a class of models whose own step trains by the mean of the squared errors."""

    class OwnStep(base):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            loss = descend(self, self.optimizer, lambda: tf.reduce_mean((y - self(x, training=True)) ** 2))
            return {"loss": loss}

    return OwnStep
