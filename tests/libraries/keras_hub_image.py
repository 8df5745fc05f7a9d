"""KerasHub's image classifier, whose `fit` resizes the images before it trains."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, size=(45, 24, 24, 3)).astype("float32"), rng.integers(0, 4, 45)
    with ctx.strategy.scope():
        backbone = keras_hub.models.ViTBackbone(
            image_shape=(16, 16, 3),
            patch_size=8,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            mlp_dim=16,
            dropout_rate=0.0,
            attention_dropout=0.0,
        )
        converter = keras_hub.layers.ViTImageConverter(image_size=(16, 16), scale=1 / 255)
        preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
        classifier = keras_hub.models.ViTImageClassifier(
            backbone=backbone, num_classes=4, preprocessor=preprocessor
        )
        classifier.compile(
            optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = ctx.fit(classifier, images, labels, epochs=2, batch_size=16, callbacks=callbacks)
    return outcome(history, models=[classifier])
