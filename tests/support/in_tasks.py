"""What train functions of tests share. Imports TensorFlow nowhere."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


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
