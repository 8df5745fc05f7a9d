"""Bidirectional LSTM on IMDB: words, an embedding, two bidirectional LSTMs, one probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

MAX_FEATURES = 30
MAXLEN = 6


def reviews(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.integers(1, MAX_FEATURES, size=(count, MAXLEN))
    y = (x.mean(axis=1) > MAX_FEATURES / 2).astype("float32")
    return x.astype("int32"), y


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(2)
    with ctx.strategy.scope():
        inputs = keras.Input(shape=(None,), dtype="int32")
        x = layers.Embedding(MAX_FEATURES, 5)(inputs)
        x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
        x = layers.Bidirectional(layers.LSTM(3))(x)
        outputs = layers.Dense(1, activation="sigmoid")(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )

    def data() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(reviews(77)).shuffle(77, seed=3).batch(32)

    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
