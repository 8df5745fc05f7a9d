"""TensorFlow Model Optimization: magnitude pruning, whose callback counts the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(9)
    rng = np.random.default_rng(9)
    x, labels = rng.normal(size=(90, 6)).astype("float32"), rng.integers(0, 3, 90)
    sparsity = tfmot.sparsity.keras
    schedule = sparsity.PolynomialDecay(
        initial_sparsity=0.25, final_sparsity=0.75, begin_step=0, end_step=12, frequency=2
    )
    with ctx.strategy.scope():
        model = sparsity.prune_low_magnitude(
            tf.keras.Sequential(
                [
                    tf.keras.layers.Dense(16, activation="relu", input_shape=(6,)),
                    tf.keras.layers.Dense(3, activation="softmax"),
                ]
            ),
            pruning_schedule=schedule,
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = ctx.fit(
        model, x, labels, batch_size=16, epochs=3, callbacks=[sparsity.UpdatePruningStep(), *callbacks]
    )
    return outcome(history, models=[model])
