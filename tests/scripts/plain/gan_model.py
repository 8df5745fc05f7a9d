# check: workers=1,2 keras=legacy,3 plain=one kill=20
"""A GAN as a model with a train_step of its own: how keras.io shows it."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

LATENT = 16

keras.utils.set_random_seed(1)


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real_images):
        batch_size = tf.shape(real_images)[0]
        generated = self.generator(tf.random.normal((batch_size, LATENT)))
        combined = tf.concat([generated, real_images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))

        noise, misleading = tf.random.normal((batch_size, LATENT)), tf.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(misleading, self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


images = (load_digits().images / 8.0 - 1.0).reshape(-1, 64).astype("float32")[:1024]
generator = keras.Sequential([keras.Input((LATENT,)), layers.Dense(64, "relu"), layers.Dense(64, "tanh")])
discriminator = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(1)])
gan = GAN(discriminator, generator)
gan.compile(
    d_optimizer=keras.optimizers.Adam(1e-3),
    g_optimizer=keras.optimizers.Adam(1e-3),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(1024).batch(64)
history = gan.fit(dataset, epochs=3, verbose=0)
print("losses", history.history["d_loss"][-1], history.history["g_loss"][-1])
generator.save("generator.keras")
np.save("samples.npy", generator.predict(np.random.normal(size=(4, LATENT)).astype("float32"), verbose=0))
