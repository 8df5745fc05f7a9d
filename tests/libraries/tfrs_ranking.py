"""TensorFlow Recommenders: the tutorial's ranking model, whose base class has a train_step of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tests.programs.outcome import Outcome, outcome

USERS, MOVIES = 12, 20


class MovielensModel(tfrs.models.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.users = tf.keras.layers.Embedding(USERS, 4)
        self.movies = tf.keras.layers.Embedding(MOVIES, 4)
        self.ratings = tf.keras.Sequential(
            [tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)]
        )
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE),
            metrics=[tf.keras.metrics.RootMeanSquaredError()],
        )

    def call(self, features: Any) -> Any:
        return self.ratings(tf.concat([self.users(features["user"]), self.movies(features["movie"])], axis=1))

    def compute_loss(self, features: Any, training: bool = False) -> Any:
        labels = features.pop("rating")
        return tf.reduce_mean(self.task(labels=labels, predictions=self(features)))


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(5)
    rng = np.random.default_rng(5)
    ratings = {
        "user": rng.integers(0, USERS, 90),
        "movie": rng.integers(0, MOVIES, 90),
        "rating": rng.uniform(1, 5, size=(90, 1)).astype("float32"),
    }
    data = tf.data.Dataset.from_tensor_slices(ratings).shuffle(90, seed=5).batch(32)
    with ctx.strategy.scope():
        model = MovielensModel()
        model.compile(optimizer=tf.keras.optimizers.Adam(0.05, epsilon=1e-5))
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
