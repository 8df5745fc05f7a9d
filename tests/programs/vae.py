"""Variational AutoEncoder: a train_step of its own, and a model without a call.

The noise of the sampling comes with the data, so that it does not depend on the number of replicas; in
`vae_random` it is drawn in the layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

LATENT_DIM = 2


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to sample z, the vector encoding a digit."""

    def call(self, inputs: Any) -> Any:
        z_mean, z_log_var, epsilon = inputs
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


def make_encoder(sampling: type = Sampling) -> Any:
    encoder_inputs = keras.Input(shape=(8, 8, 1))
    noise = keras.Input(shape=(LATENT_DIM,))
    x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
    x = layers.Flatten()(x)
    x = layers.Dense(8, activation="relu")(x)
    z_mean = layers.Dense(LATENT_DIM, name="z_mean")(x)
    z_log_var = layers.Dense(LATENT_DIM, name="z_log_var")(x)
    z = sampling()([z_mean, z_log_var, noise])
    return keras.Model([encoder_inputs, noise], [z_mean, z_log_var, z], name="encoder")


def make_decoder() -> Any:
    latent_inputs = keras.Input(shape=(LATENT_DIM,))
    x = layers.Dense(4 * 4 * 4, activation="relu")(latent_inputs)
    x = layers.Reshape((4, 4, 4))(x)
    x = layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
    decoder_outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model(latent_inputs, decoder_outputs, name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        images, noise = data
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder([images, noise])
            reconstruction = self.decoder(z)
            reconstruction_loss = tf.reduce_mean(
                tf.reduce_sum(keras.losses.binary_crossentropy(images, reconstruction), axis=(1, 2))
            )
            kl_loss = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


def digits_and_noise(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.random((count, 8, 8, 1), dtype="float32"), rng.normal(size=(count, 2)).astype("float32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(5)
    with ctx.strategy.scope():
        vae = VAE(make_encoder(), make_decoder())
        vae.compile(optimizer=keras.optimizers.SGD(0.01))
    data = tf.data.Dataset.from_tensor_slices(digits_and_noise(77)).shuffle(77, seed=5).batch(32)
    history = ctx.fit(vae, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[vae])
