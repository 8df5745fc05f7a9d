"""Imbalanced classification: class weights, and counts as metrics; the user's own fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def transactions(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(16)
    y = (rng.random((count, 1)) < 0.15).astype("float32")
    return (rng.normal(size=(count, 6)) + y).astype("float32"), y


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(16)
    features, targets = transactions(125)
    num_positive = int(targets.sum())
    class_weight = {0: 1.0 / (len(targets) - num_positive), 1: 1.0 / num_positive}
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(shape=(6,)),
                layers.Dense(8, activation="relu"),
                layers.Dense(8, activation="relu"),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        metrics = [
            keras.metrics.FalseNegatives(name="fn"),
            keras.metrics.FalsePositives(name="fp"),
            keras.metrics.TrueNegatives(name="tn"),
            keras.metrics.TruePositives(name="tp"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
        ]
        # A loss with weights of 1/class size is small, and so are its gradients.
        model.compile(optimizer=keras.optimizers.SGD(5.0), loss="binary_crossentropy", metrics=metrics)
    data = tf.data.Dataset.from_tensor_slices((features, targets)).batch(32)
    history = model.fit(
        data,
        epochs=3,
        verbose=0,
        callbacks=[*ctx.callbacks(), *callbacks],
        validation_data=tf.data.Dataset.from_tensor_slices(transactions(41)).batch(32),
        class_weight=class_weight,
    )
    return outcome(history, models=[model])
