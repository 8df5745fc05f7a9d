"""Image augmentation as a part of the model."""

from __future__ import annotations

from typing import Any

from tests.programs.outcome import Outcome
from tests.programs.random_layers import layers, train_layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_layers() -> list[Any]:
        return [
            layers.RandomFlip("horizontal"),
            layers.RandomRotation(0.1),
            layers.Flatten(),
        ]

    return train_layers(ctx, make_layers, (8, 8, 1), callbacks=callbacks)
