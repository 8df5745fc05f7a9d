"""An LSTM that drops inputs and states: no layer of its own does."""

from __future__ import annotations

from typing import Any

from tests.programs.outcome import Outcome
from tests.programs.random_layers import layers, train_layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_layers() -> list[Any]:
        return [
            layers.LSTM(4, dropout=0.2, recurrent_dropout=0.1),
        ]

    return train_layers(ctx, make_layers, (6, 3), callbacks=callbacks)
