"""Gradients of two steps for one update, which Keras 3 cannot do with several replicas."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        return keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)

    return train_with(ctx, make_optimizer, callbacks=callbacks)
