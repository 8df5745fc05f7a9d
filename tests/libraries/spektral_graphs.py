"""Spektral: graphs of other sizes in each batch, which its loader pads to the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from spektral.data import BatchLoader, Dataset, Graph
from spektral.layers import GCSConv, GlobalSumPool

from tests.programs.outcome import Outcome, outcome


class Molecules(Dataset):  # type: ignore[misc]
    def read(self) -> list[Graph]:
        rng = np.random.default_rng(10)
        sizes = rng.integers(3, 9, size=46)
        return [
            Graph(
                x=rng.random((size, 4)).astype("float32"),
                a=np.triu(rng.integers(0, 2, size=(size, size)), 1).astype("float32"),
                y=np.eye(2, dtype="float32")[int(size > 5)],
            )
            for size in sizes
        ]


class Classifier(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.convolution = GCSConv(8, activation="relu")
        self.pooling = GlobalSumPool()
        self.dense = tf.keras.layers.Dense(2, "softmax")

    def call(self, inputs: Any) -> Any:
        return self.dense(self.pooling(self.convolution(inputs)))


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(10)
    loader = BatchLoader(Molecules(), batch_size=12, shuffle=False)
    with ctx.strategy.scope():
        model = Classifier()
        model.compile(tf.keras.optimizers.Adam(0.01, epsilon=1e-5), "categorical_crossentropy")
    history = ctx.fit(
        model, loader.load(), steps_per_epoch=loader.steps_per_epoch, epochs=3, callbacks=callbacks
    )
    return outcome(history, models=[model])
