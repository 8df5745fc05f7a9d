"""A tagger with an Embedding of `mask_zero=True`: Keras's own loss is the mean over what is not masked."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.ner import NUM_TAGS, VOCAB_SIZE, sentences
from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


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
