"""Collaborative filtering for movie recommendations: embeddings and biases of users and movies."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_USERS = 20
NUM_MOVIES = 12


class RecommenderNet(keras.Model):
    def __init__(self, num_users: int, num_movies: int, embedding_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs: Any) -> Any:
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        # The example has tensordot(user_vector, movie_vector, 2) here, which sums over the batch too.
        dot_user_movie = tf.reduce_sum(user_vector * movie_vector, axis=1, keepdims=True)
        return tf.nn.sigmoid(dot_user_movie + user_bias + movie_bias)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(19)
    rng = np.random.default_rng(19)
    x = np.stack([rng.integers(NUM_USERS, size=125), rng.integers(NUM_MOVIES, size=125)], axis=1)
    y = (x.sum(axis=1) % 5 / 4).astype("float32")
    with ctx.strategy.scope():
        model = RecommenderNet(NUM_USERS, NUM_MOVIES, 4)
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(learning_rate=0.001, epsilon=1e-5),
        )
    data = tf.data.Dataset.from_tensor_slices((x[:100], y[:100])).shuffle(100, seed=19).batch(32)
    test = tf.data.Dataset.from_tensor_slices((x[100:], y[100:])).batch(32)
    history = ctx.fit(model, data, epochs=3, validation_data=test, callbacks=callbacks)
    return outcome(history, models=[model])
