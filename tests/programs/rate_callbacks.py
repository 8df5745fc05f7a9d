"""Callbacks that change the learning rate, one by the epoch and one by the validation's loss."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        return keras.optimizers.Adagrad(0.5, epsilon=1e-4)

    rates = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9 if epoch else rate),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=100.0),
    ]
    return train_with(ctx, make_optimizer, callbacks=[*rates, *callbacks], epochs=4)
