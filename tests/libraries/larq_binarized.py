"""Larq: a binarized convolutional network, without the BatchNormalization of its tutorial."""

from __future__ import annotations

from typing import Any

import larq
import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(8)
    rng = np.random.default_rng(8)
    images, labels = rng.normal(size=(45, 8, 8, 1)).astype("float32"), rng.integers(0, 3, 45)
    binary = {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip", "use_bias": False}
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                larq.layers.QuantConv2D(4, (3, 3), input_shape=(8, 8, 1), **binary),
                tf.keras.layers.MaxPooling2D((2, 2)),
                larq.layers.QuantConv2D(4, (3, 3), input_quantizer="ste_sign", **binary),
                tf.keras.layers.Flatten(),
                larq.layers.QuantDense(3, input_quantizer="ste_sign", **binary),
                tf.keras.layers.Activation("softmax"),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(1e-2, epsilon=1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    history = ctx.fit(model, images, labels, batch_size=16, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
