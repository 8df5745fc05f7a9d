"""The VAE as Keras has it: the sampling layer draws its noise."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.outcome import Outcome, outcome
from tests.programs.vae import VAE, digits_and_noise, keras, layers, make_decoder, make_encoder


class Sampling(layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        z_mean, z_log_var, _ = inputs
        epsilon = keras.random.normal(shape=tf.shape(z_mean), seed=self.seed_generator)
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(5)
    with ctx.strategy.scope():
        vae = VAE(make_encoder(Sampling), make_decoder())
        vae.compile(optimizer=keras.optimizers.SGD(0.01))
    data = tf.data.Dataset.from_tensor_slices(digits_and_noise(77)).batch(32)
    history = ctx.fit(vae, data, epochs=1, callbacks=callbacks)
    return outcome(history, models=[vae])
