"""Supervised Contrastive Learning: each example is compared with the others of its batch.

So the examples are not independent, and parts of a batch have other losses than the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class SupervisedContrastiveLoss(keras.losses.Loss):
    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def call(self, labels: Any, feature_vectors: Any) -> Any:
        feature_vectors_normalized = tf.math.l2_normalize(feature_vectors, axis=1)
        logits = tf.divide(
            tf.matmul(feature_vectors_normalized, tf.transpose(feature_vectors_normalized)), self.temperature
        )
        labels = tf.reshape(labels, [-1, 1])
        is_same = tf.cast(tf.equal(labels, tf.transpose(labels)), tf.float32)
        targets = is_same / tf.reduce_sum(is_same, axis=1, keepdims=True)
        return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def create_encoder() -> Any:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(4)], name="encoder"
    )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(10)
    rng = np.random.default_rng(10)
    x = rng.normal(size=(96, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1)

    def data() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=10).batch(24)

    with ctx.strategy.scope():
        encoder = create_encoder()
        inputs = keras.Input((6,))
        outputs = layers.Dense(4, activation="relu")(encoder(inputs))
        encoder_with_projection_head = keras.Model(inputs, outputs)
        encoder_with_projection_head.compile(
            optimizer=keras.optimizers.SGD(0.1), loss=SupervisedContrastiveLoss(temperature=0.5)
        )
    ctx.fit(encoder_with_projection_head, data, epochs=2, callbacks=callbacks)
    with ctx.strategy.scope():
        for layer in encoder.layers:
            layer.trainable = False
        features = encoder(inputs)
        classifier = keras.Model(inputs, layers.Dense(3, activation="softmax")(features))
        classifier.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = ctx.fit(classifier, data, epochs=2, callbacks=callbacks)
    return outcome(history, models=[encoder_with_projection_head, classifier])
