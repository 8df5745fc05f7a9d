"""Convolutional autoencoder for image denoising: the images are input and target."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(26)
    rng = np.random.default_rng(26)
    images = rng.random((61, 8, 8, 1), dtype="float32")
    noisy = np.clip(images + 0.4 * rng.normal(size=images.shape), 0.0, 1.0).astype("float32")
    with ctx.strategy.scope():
        inputs = layers.Input(shape=(8, 8, 1))
        x = layers.Conv2D(4, (3, 3), activation="relu", padding="same")(inputs)
        x = layers.MaxPooling2D((2, 2), padding="same")(x)
        x = layers.Conv2DTranspose(4, (3, 3), strides=2, activation="relu", padding="same")(x)
        x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
        autoencoder = keras.Model(inputs, x)
        autoencoder.compile(
            optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-5),
            loss="binary_crossentropy",
            steps_per_execution=2,
        )
    data = tf.data.Dataset.from_tensor_slices((noisy, images)).shuffle(61, seed=26).batch(16)
    history = ctx.fit(autoencoder, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[autoencoder])
