"""Text classification with Transformer: token and position embeddings, one block."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

VOCAB_SIZE = 20
MAXLEN = 6
EMBED_DIM = 8


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim: int, num_heads: int, ff_dim: int) -> None:
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        attn_output = self.att(inputs, inputs)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.ffn(out1)
        return self.layernorm2(out1 + ffn_output)


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen: int, vocab_size: int, embed_dim: int) -> None:
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x: Any) -> Any:
        maxlen = tf.shape(x)[-1]
        positions = tf.range(start=0, limit=maxlen, delta=1)
        positions = self.pos_emb(positions)
        x = self.token_emb(x)
        return x + positions


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.integers(VOCAB_SIZE, size=(count, MAXLEN))
    return x.astype("int32"), (x[:, 0] > x[:, -1]).astype("int64")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        inputs = layers.Input(shape=(MAXLEN,), dtype="int32")
        x = TokenAndPositionEmbedding(MAXLEN, VOCAB_SIZE, EMBED_DIM)(inputs)
        x = TransformerBlock(EMBED_DIM, num_heads=2, ff_dim=8)(x)
        x = layers.GlobalAveragePooling1D()(x)
        x = layers.Dense(8, activation="relu")(x)
        outputs = layers.Dense(2, activation="softmax")(x)
        model = keras.Model(inputs=inputs, outputs=outputs)
        # A key's bias has no gradient but rounding, and with the default epsilon of 1e-7 Adam makes steps of
        # the size of the learning rate out of it.
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-4),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    data = tf.data.Dataset.from_tensor_slices(sentences(90)).shuffle(90, seed=3).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
