"""The DCGAN as Keras has it: the train_step draws its noise."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.dcgan import (
    GAN,
    LATENT_DIM,
    faces_and_noise,
    keras,
    make_discriminator,
    make_generator,
)
from tests.programs.outcome import Outcome, outcome


class RandomGAN(GAN):
    def train_step(self, real_images: Any) -> dict[str, Any]:
        batch_size = tf.shape(real_images)[0]
        random_latent_vectors = tf.random.normal(shape=(batch_size, LATENT_DIM))
        label_noise = tf.random.uniform((batch_size, 2))
        return super().train_step((real_images, random_latent_vectors, label_noise))


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(6)
    with ctx.strategy.scope():
        gan = RandomGAN(make_discriminator(), make_generator())
        gan.compile(
            d_optimizer=keras.optimizers.SGD(learning_rate=0.001),
            g_optimizer=keras.optimizers.SGD(learning_rate=0.001),
            loss_fn=keras.losses.BinaryCrossentropy(),
        )
    faces, _, _ = faces_and_noise(77)
    history = ctx.fit(gan, tf.data.Dataset.from_tensor_slices(faces).batch(32), epochs=1, callbacks=callbacks)
    return outcome(history, models=[gan], optimizers=[gan.d_optimizer, gan.g_optimizer])
