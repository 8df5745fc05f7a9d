"""TensorFlow Ranking: its Keras losses and metrics, on lists that are padded with negative labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.libraries import without_estimators  # noqa: F401 (before the library)
from tests.programs.outcome import Outcome, outcome

import tensorflow_ranking as tfr  # isort: skip


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(14)
    rng = np.random.default_rng(14)
    x = rng.normal(size=(70, 5, 4)).astype("float32")
    y = rng.integers(0, 5, size=(70, 5)).astype("float32")
    y[rng.random(70) < 0.5, 3:] = -1
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((5, 4)),
                tf.keras.layers.Dense(8, activation="relu"),
                tf.keras.layers.Dense(1),
                tf.keras.layers.Reshape((5,)),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adagrad(0.1),
            loss=tfr.keras.losses.SoftmaxLoss(),
            metrics=[
                tfr.keras.metrics.NDCGMetric(name="ndcg", topn=3),
                tfr.keras.metrics.MRRMetric(name="mrr"),
            ],
        )
    history = ctx.fit(
        model, x, y, epochs=3, batch_size=16, validation_data=(x[:20], y[:20]), callbacks=callbacks
    )
    return outcome(history, models=[model])
