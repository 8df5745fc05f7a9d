"""A tagger with an Embedding of `mask_zero=True`: Keras's own loss is the mean over what is not masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

VOCAB_SIZE = 20
NUM_TAGS = 4
MAXLEN = 6


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(17)
    words = rng.integers(1, VOCAB_SIZE, size=(count, MAXLEN))
    words[np.arange(MAXLEN) >= rng.integers(1, MAXLEN + 1, size=(count, 1))] = 0
    return words.astype("int32"), np.where(words > 0, 1 + words % (NUM_TAGS - 1), 0)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(18)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                layers.Embedding(VOCAB_SIZE, 5, mask_zero=True),
                layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
                layers.Dense(NUM_TAGS, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.5), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    data = tf.data.Dataset.from_tensor_slices(sentences(77)).shuffle(77, seed=18).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
