"""KerasRS: a deep and cross network, as its example of ranking has it."""

from __future__ import annotations

from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

USERS, MOVIES = 12, 20


class DeepAndCross(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.users = keras.layers.Embedding(USERS, 4)
        self.movies = keras.layers.Embedding(MOVIES, 4)
        self.crosses = [keras_rs.layers.FeatureCross(projection_dim=3) for _ in range(2)]
        self.ratings = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

    def call(self, inputs: Any) -> Any:
        x0 = x = keras.ops.concatenate([self.users(inputs["user"]), self.movies(inputs["movie"])], axis=-1)
        for cross in self.crosses:
            x = cross(x0, x)
        return self.ratings(x)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(3)
    features = {"user": rng.integers(0, USERS, 90), "movie": rng.integers(0, MOVIES, 90)}
    ratings = rng.uniform(1, 5, size=(90, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((features, ratings)).shuffle(90, seed=3).batch(32)
    with ctx.strategy.scope():
        model = DeepAndCross()
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.1),
            loss="mean_squared_error",
            metrics=[keras.metrics.RootMeanSquaredError()],
        )
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
