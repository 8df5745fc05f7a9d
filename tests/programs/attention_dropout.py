"""Attention that drops scores: the dropout is an argument of MultiHeadAttention."""

from __future__ import annotations

from typing import Any

from tests.programs.outcome import Outcome
from tests.programs.random_layers import layers, train_layers


class SelfAttention(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=3, dropout=0.1)

    def call(self, inputs: Any) -> Any:
        return self.attention(inputs, inputs)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    def make_layers() -> list[Any]:
        return [SelfAttention(), layers.GlobalAveragePooling1D()]

    return train_layers(ctx, make_layers, (6, 3), callbacks=callbacks)
