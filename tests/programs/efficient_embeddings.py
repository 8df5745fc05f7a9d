"""Memory-efficient embeddings for recommendation: quotient-remainder and mixed-dimension embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_USERS = 20
NUM_MOVIES = 12
EMBEDDING_DIM = 4


class QREmbedding(layers.Layer):
    """Shares the rows of two small tables: the product of a quotient's row and a remainder's row."""

    def __init__(self, vocabulary_size: int, num_buckets: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.q_embeddings = layers.Embedding(vocabulary_size // num_buckets + 1, EMBEDDING_DIM)
        self.r_embeddings = layers.Embedding(num_buckets, EMBEDDING_DIM)

    def call(self, embedding_idx: Any) -> Any:
        quotient_index = tf.math.floordiv(embedding_idx, self.num_buckets)
        remainder_index = tf.math.floormod(embedding_idx, self.num_buckets)
        return self.q_embeddings(quotient_index) * self.r_embeddings(remainder_index)


class MDEmbedding(layers.Layer):
    """Gives popular entries a wide embedding, and the others a narrow one that is projected."""

    def __init__(self, blocks_vocabulary: list[int], blocks_dims: list[int]) -> None:
        super().__init__()
        self.starts = np.cumsum([0, *blocks_vocabulary])
        self.block_embeddings = [
            layers.Embedding(size, dim) for size, dim in zip(blocks_vocabulary, blocks_dims, strict=True)
        ]
        self.block_projections = [layers.Dense(EMBEDDING_DIM, use_bias=False) for _ in blocks_dims]

    def call(self, embedding_idx: Any) -> Any:
        total = 0.0
        for i, (table, projection) in enumerate(
            zip(self.block_embeddings, self.block_projections, strict=True)
        ):
            start, end = int(self.starts[i]), int(self.starts[i + 1])
            is_here = tf.logical_and(embedding_idx >= start, embedding_idx < end)
            local = tf.clip_by_value(embedding_idx - start, 0, end - start - 1)
            total += tf.cast(is_here, tf.float32)[..., tf.newaxis] * projection(table(local))
        return total


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(14)
    rng = np.random.default_rng(14)
    users, movies = rng.integers(NUM_USERS, size=109), rng.integers(NUM_MOVIES, size=109)
    ratings = ((users + movies) % 5 / 4).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(({"user_id": users, "movie_id": movies}, ratings))
    with ctx.strategy.scope():
        user_id = keras.Input(name="user_id", shape=(), dtype="int32")
        movie_id = keras.Input(name="movie_id", shape=(), dtype="int32")
        user = QREmbedding(NUM_USERS, num_buckets=5)(user_id)
        movie = MDEmbedding([4, NUM_MOVIES - 4], [4, 2])(movie_id)
        logits = layers.Dot(axes=1, name="dot_similarity")([user, movie])
        prediction = keras.activations.sigmoid(logits)
        model = keras.Model(inputs=[user_id, movie_id], outputs=prediction, name="baseline_model")
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss=keras.losses.MeanSquaredError(),
            metrics=[keras.metrics.MeanAbsoluteError()],
        )
    history = ctx.fit(model, data.shuffle(109, seed=14).batch(32), epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
