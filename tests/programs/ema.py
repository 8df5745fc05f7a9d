"""An exponential moving average of the weights, which takes their place at the end."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        return keras.optimizers.SGD(0.01, momentum=0.9, use_ema=True, ema_momentum=0.8)

    return train_with(ctx, make_optimizer, callbacks=callbacks)
