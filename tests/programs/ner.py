"""Named Entity Recognition using Transformers: the loss is the mean over the tokens that are not padding.

Parts of a batch have other numbers of tokens, so the mean of their means is not the mean over the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome
from tests.programs.text_transformer import TokenAndPositionEmbedding, TransformerBlock

keras = tf.keras
layers = keras.layers

VOCAB_SIZE = 20
NUM_TAGS = 4
MAXLEN = 6


class NERModel(keras.Model):
    def __init__(self, num_tags: int, vocab_size: int, maxlen: int, embed_dim: int) -> None:
        super().__init__()
        self.embedding_layer = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)
        self.transformer_block = TransformerBlock(embed_dim, 2, 8)
        self.ff = layers.Dense(8, activation="relu")
        self.ff_final = layers.Dense(num_tags, activation="softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.embedding_layer(inputs)
        x = self.transformer_block(x)
        x = self.ff(x)
        return self.ff_final(x)


class CustomNonPaddingTokenLoss(keras.losses.Loss):
    def __init__(self, name: str = "custom_ner_loss") -> None:
        super().__init__(name=name)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=False, reduction="none")
        loss = loss_fn(y_true, y_pred)
        mask = tf.cast((y_true > 0), dtype=tf.float32)
        loss = loss * mask
        return tf.reduce_sum(loss) / tf.reduce_sum(mask)


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(17)
    words = rng.integers(1, VOCAB_SIZE, size=(count, MAXLEN))
    words[np.arange(MAXLEN) >= rng.integers(1, MAXLEN + 1, size=(count, 1))] = 0
    return words.astype("int32"), np.where(words > 0, 1 + words % (NUM_TAGS - 1), 0)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(17)
    with ctx.strategy.scope():
        ner_model = NERModel(NUM_TAGS, VOCAB_SIZE, MAXLEN, embed_dim=8)
        ner_model.compile(
            optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-4), loss=CustomNonPaddingTokenLoss()
        )
    data = tf.data.Dataset.from_tensor_slices(sentences(77)).shuffle(77, seed=17).batch(32)
    history = ctx.fit(ner_model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[ner_model])
