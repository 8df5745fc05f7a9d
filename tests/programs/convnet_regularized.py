"""A convnet with BatchNormalization and Dropout."""

from __future__ import annotations

from typing import Any

from tests.programs.outcome import Outcome
from tests.programs.random_layers import layers, train_layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_layers() -> list[Any]:
        return [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.5),
        ]

    return train_layers(ctx, make_layers, (8, 8, 1), callbacks=callbacks)
