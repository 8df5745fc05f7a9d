"""segmentation_models: a Unet without downloaded weights, with a loss and a metric of the library's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

os.environ["SM_FRAMEWORK"] = "tf.keras"

import segmentation_models as sm  # which reads the variable


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(20)
    rng = np.random.default_rng(20)
    x = rng.random((12, 32, 32, 3)).astype("float32")
    y = (x.mean(axis=-1, keepdims=True) > 0.5).astype("float32")
    with ctx.strategy.scope():
        model = sm.Unet(
            "vgg16",
            encoder_weights=None,
            input_shape=(32, 32, 3),
            classes=1,
            activation="sigmoid",
            decoder_filters=(8, 8, 4, 4, 4),
            decoder_use_batchnorm=False,
        )
        # Of each image: that of a whole batch is not the mean of those of its parts.
        model.compile(
            tf.keras.optimizers.SGD(0.01),
            loss=sm.losses.JaccardLoss(per_image=True),
            metrics=[sm.metrics.IOUScore(per_image=True)],
        )
    history = ctx.fit(model, x, y, epochs=1, batch_size=6, callbacks=callbacks)
    return outcome(history, models=[model])
