"""A schedule of the learning rate with a warm-up, which counts the steps of the run."""

from __future__ import annotations

from typing import Any

from tests.programs.optimizers import keras, train_with
from tests.programs.outcome import Outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_optimizer() -> Any:
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, decay_steps=8, alpha=0.1, warmup_target=0.02, warmup_steps=3
        )
        return keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)

    return train_with(ctx, make_optimizer, callbacks=callbacks)
