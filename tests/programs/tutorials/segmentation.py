"""Segmentation: a U-Net over a small pre-trained network; masks, sample weights, and validation in steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Augment(layers.Layer):
    """Flips images and masks alike; here always, as its random flips depend on who draws them."""

    def call(self, inputs: Any, labels: Any) -> Any:
        return tf.image.flip_left_right(inputs), tf.image.flip_left_right(labels)


def unet_model(output_channels: int) -> Any:
    base_inputs = layers.Input(shape=(8, 8, 3))
    first = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu", name="block_1")(base_inputs)
    second = layers.Conv2D(6, 3, strides=2, padding="same", activation="relu", name="block_2")(first)
    down_stack = keras.Model(inputs=base_inputs, outputs=[first, second])
    down_stack.trainable = False
    inputs = layers.Input(shape=[8, 8, 3])
    skip, x = down_stack(inputs)
    upsample = keras.Sequential(
        [layers.Conv2DTranspose(4, 3, strides=2, padding="same", use_bias=False), layers.ReLU()]
    )
    x = layers.Concatenate()([upsample(x), skip])
    last = layers.Conv2DTranspose(filters=output_channels, kernel_size=3, strides=2, padding="same")
    return keras.Model(inputs=inputs, outputs=last(x))


def add_sample_weights(image: Any, label: Any) -> Any:
    class_weights = tf.constant([2.0, 2.0, 1.0]) / 5.0
    return image, label, tf.gather(class_weights, indices=tf.cast(label, tf.int32))


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(13)
    images = rng.random((40, 8, 8, 3)).astype("float32")
    masks = rng.integers(0, 3, (40, 8, 8, 1))
    rows = tf.data.Dataset.from_tensor_slices((images, masks))
    test_batches = rows.skip(32).batch(4)
    values, models = {}, []
    for name in ("plain", "weighted"):
        keras.utils.set_random_seed(13)
        # Another shuffle for each model: how far the first `fit` prefetched decides the next order of one.
        shuffled = rows.take(32).cache().shuffle(32, seed=13)
        data = shuffled.batch(8).repeat().map(Augment()).prefetch(tf.data.AUTOTUNE)
        if name == "weighted":
            data = data.map(add_sample_weights)
        with ctx.strategy.scope():
            model = unet_model(output_channels=3)
            model.compile(
                optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        if name == "plain":
            values["before"] = model.predict(images[:1], verbose=0).ravel()
        history = model.fit(
            data,
            epochs=2,
            steps_per_epoch=4,
            validation_steps=1,
            validation_data=test_batches,
            callbacks=[*callbacks],
            verbose=0,
        )
        values |= {f"{name} {key}": one for key, one in history.history.items()}
        values[f"{name} predicted"] = model.predict(test_batches, verbose=0).ravel()
        models.append(model)
    return outcome(values, models=models)
