"""DCGAN: two networks and two optimizers in one train_step. Its noise comes with the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

LATENT_DIM = 4


def make_discriminator() -> Any:
    return keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            layers.Conv2D(4, kernel_size=4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(4, kernel_size=4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(1, activation="sigmoid"),
        ],
        name="discriminator",
    )


def make_generator() -> Any:
    return keras.Sequential(
        [
            keras.Input(shape=(LATENT_DIM,)),
            layers.Dense(4 * 4 * 4),
            layers.Reshape((4, 4, 4)),
            layers.Conv2DTranspose(4, kernel_size=4, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(1, kernel_size=5, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


class GAN(keras.Model):
    def __init__(self, discriminator: Any, generator: Any) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data: Any) -> dict[str, Any]:
        real_images, random_latent_vectors, label_noise = data
        batch_size = tf.shape(real_images)[0]
        generated_images = self.generator(random_latent_vectors)
        combined_images = tf.concat([generated_images, real_images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        # Add random noise to the labels - important trick!
        labels += 0.05 * tf.concat([label_noise[:, :1], label_noise[:, 1:]], axis=0)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))
        # Assemble labels that say "all real images"
        misleading_labels = tf.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(random_latent_vectors))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def faces_and_noise(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(6)
    faces, labels = rng.random((count, 8, 8, 1)), rng.random((count, 2))
    return faces.astype("float32"), rng.normal(size=(count, 4)).astype("float32"), labels.astype("float32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(6)
    with ctx.strategy.scope():
        gan = GAN(make_discriminator(), make_generator())
        gan.compile(
            d_optimizer=keras.optimizers.Adam(learning_rate=0.001, epsilon=1e-4),
            g_optimizer=keras.optimizers.Adam(learning_rate=0.001, epsilon=1e-4),
            loss_fn=keras.losses.BinaryCrossentropy(),
        )
    data = tf.data.Dataset.from_tensor_slices(faces_and_noise(77)).shuffle(77, seed=6).batch(32)
    history = ctx.fit(gan, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[gan], optimizers=[gan.d_optimizer, gan.g_optimizer])
