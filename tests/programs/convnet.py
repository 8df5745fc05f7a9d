"""Simple MNIST convnet: an image classifier of convolutions and poolings."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_CLASSES = 4
INPUT_SHAPE = (8, 8, 1)


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = rng.integers(NUM_CLASSES, size=count)
    x = rng.random((count, *INPUT_SHAPE)) * 0.5 + y[:, None, None, None] / NUM_CLASSES
    return x.astype("float32"), keras.utils.to_categorical(y, NUM_CLASSES)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices(digits(109)).shuffle(109, seed=2).batch(32)
    test = tf.data.Dataset.from_tensor_slices(digits(45)).batch(32)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(shape=INPUT_SHAPE),
                layers.Conv2D(4, kernel_size=(3, 3), activation="relu"),
                layers.MaxPooling2D(pool_size=(2, 2)),
                layers.Flatten(),
                layers.Dense(NUM_CLASSES, activation="softmax"),
            ]
        )
        model.compile(
            loss="categorical_crossentropy",
            optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
            metrics=["accuracy"],
        )
    history = ctx.fit(model, data, epochs=3, validation_data=test, callbacks=callbacks)
    return outcome(history, models=[model])
