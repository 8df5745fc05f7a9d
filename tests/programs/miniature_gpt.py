"""Text generation with a miniature GPT: causal attention, positions, a loss for one of two outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome
from tests.programs.text_transformer import TokenAndPositionEmbedding

keras = tf.keras
layers = keras.layers

VOCAB_SIZE = 12
MAXLEN = 5
EMBED_DIM = 8


def causal_attention_mask(batch_size: Any, n_dest: Any, n_src: Any, dtype: Any) -> Any:
    """Masks the upper half of the dot product matrix in self attention."""
    i = tf.range(n_dest)[:, None]
    j = tf.range(n_src)
    m = i >= j - n_src + n_dest
    mask = tf.reshape(tf.cast(m, dtype), [1, n_dest, n_src])
    mult = tf.concat([tf.expand_dims(batch_size, -1), tf.constant([1, 1], dtype=tf.int32)], 0)
    return tf.tile(mask, mult)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim: int, num_heads: int, ff_dim: int) -> None:
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        input_shape = tf.shape(inputs)
        batch_size = input_shape[0]
        seq_len = input_shape[1]
        causal_mask = causal_attention_mask(batch_size, seq_len, seq_len, tf.bool)
        attention_output = self.att(inputs, inputs, attention_mask=causal_mask)
        out1 = self.layernorm1(inputs + attention_output)
        ffn_output = self.ffn(out1)
        return self.layernorm2(out1 + ffn_output)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(25)
    text = np.random.default_rng(25).integers(VOCAB_SIZE, size=(77, MAXLEN + 1)).astype("int32")
    with ctx.strategy.scope():
        inputs = layers.Input(shape=(MAXLEN,), dtype="int32")
        x = TokenAndPositionEmbedding(MAXLEN, VOCAB_SIZE, EMBED_DIM)(inputs)
        x = TransformerBlock(EMBED_DIM, 2, 8)(x)
        outputs = layers.Dense(VOCAB_SIZE)(x)
        model = keras.Model(inputs=inputs, outputs=[outputs, x])
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # No loss and optimization based on word embeddings from transformer block
        model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-4), loss=[loss_fn, None])
    data = tf.data.Dataset.from_tensor_slices((text[:, :-1], text[:, 1:])).shuffle(77, seed=25).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
