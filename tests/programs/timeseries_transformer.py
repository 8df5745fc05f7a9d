"""Timeseries classification with a Transformer: attention and convolutions over a series."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

LENGTH = 12
NUM_CLASSES = 2


def transformer_encoder(inputs: Any, head_size: int, num_heads: int, ff_dim: int) -> Any:
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads)(inputs, inputs)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    # The example's input has one channel, of which LayerNormalization leaves 0.
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(15)
    rng = np.random.default_rng(15)
    x = np.cumsum(rng.normal(size=(93, LENGTH, 3)), axis=1).astype("float32")
    y = (x[:, -1, 0] > x[:, 0, 0]).astype("int64")
    with ctx.strategy.scope():
        inputs = keras.Input(shape=(LENGTH, 3))
        outputs = transformer_encoder(inputs, head_size=4, num_heads=2, ff_dim=4)
        outputs = layers.GlobalAveragePooling1D(data_format="channels_last")(outputs)
        outputs = layers.Dense(8, activation="relu")(outputs)
        outputs = layers.Dense(NUM_CLASSES, activation="softmax")(outputs)
        model = keras.Model(inputs, outputs)
        # epsilon: as in text_transformer.py
        model.compile(
            loss="sparse_categorical_crossentropy",
            optimizer=keras.optimizers.Adam(learning_rate=1e-3, epsilon=1e-4),
            metrics=["sparse_categorical_accuracy"],
        )
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(93, seed=15).batch(31)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
