"""Decoupled weight decay, without the biases."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        optimizer = keras.optimizers.AdamW(0.005, weight_decay=0.05, epsilon=1e-4)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return train_with(ctx, make_optimizer, callbacks=callbacks)
