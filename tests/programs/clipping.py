"""Gradients that are clipped by their global norm, which is less than that of each part of the batch."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        return keras.optimizers.RMSprop(0.005, global_clipnorm=0.5, epsilon=1e-4)

    return train_with(ctx, make_optimizer, callbacks=callbacks)
