"""WGAN-GP: several steps of the discriminator for one of the generator, with a gradient penalty.

Its noise comes with the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NOISE_DIM = 4
D_STEPS = 2


def get_discriminator_model() -> Any:
    img_input = layers.Input(shape=(8, 8, 1))
    x = layers.Conv2D(4, (5, 5), strides=(2, 2), padding="same")(img_input)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(1)(x)
    return keras.Model(img_input, x, name="discriminator")


def get_generator_model() -> Any:
    noise = layers.Input(shape=(NOISE_DIM,))
    x = layers.Dense(4 * 4 * 4, use_bias=False)(noise)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.Reshape((4, 4, 4))(x)
    x = layers.UpSampling2D((2, 2))(x)
    x = layers.Conv2D(1, (3, 3), padding="same", activation="tanh")(x)
    return keras.Model(noise, x, name="generator")


class WGAN(keras.Model):
    def __init__(self, discriminator: Any, generator: Any, discriminator_extra_steps: int) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_steps = discriminator_extra_steps
        self.gp_weight = 10.0

    def compile(self, d_optimizer: Any, g_optimizer: Any, d_loss_fn: Any, g_loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, alpha: Any, real_images: Any, fake_images: Any) -> Any:
        """Calculates the gradient penalty, which is added to the discriminator's loss."""
        diff = fake_images - real_images
        interpolated = real_images + alpha * diff
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        real_images, latents, alphas = data
        for i in range(self.d_steps):
            with tf.GradientTape() as tape:
                fake_images = self.generator(latents[:, i], training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(alphas[:, i, None, None, None], real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(
                zip(d_gradient, self.discriminator.trainable_variables, strict=True)
            )
        with tf.GradientTape() as tape:
            generated_images = self.generator(latents[:, -1], training=True)
            gen_img_logits = self.discriminator(generated_images, training=True)
            g_loss = self.g_loss_fn(gen_img_logits)
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gen_gradient, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def discriminator_loss(real_img: Any, fake_img: Any) -> Any:
    real_loss = tf.reduce_mean(real_img)
    fake_loss = tf.reduce_mean(fake_img)
    return fake_loss - real_loss


def generator_loss(fake_img: Any) -> Any:
    return -tf.reduce_mean(fake_img)


def fashion_and_noise(count: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    images, alphas = rng.uniform(-1, 1, (count, 8, 8, 1)), rng.random((count, D_STEPS))
    latents = rng.normal(size=(count, D_STEPS + 1, NOISE_DIM))
    return images.astype("float32"), latents.astype("float32"), alphas.astype("float32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(7)
    with ctx.strategy.scope():
        wgan = WGAN(get_discriminator_model(), get_generator_model(), discriminator_extra_steps=D_STEPS)
        wgan.compile(
            d_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9, epsilon=1e-4),
            g_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9, epsilon=1e-4),
            g_loss_fn=generator_loss,
            d_loss_fn=discriminator_loss,
        )
    data = tf.data.Dataset.from_tensor_slices(fashion_and_noise(77)).shuffle(77, seed=7).batch(32)
    history = ctx.fit(wgan, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[wgan], optimizers=[wgan.d_optimizer, wgan.g_optimizer])
