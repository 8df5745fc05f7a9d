# check: workers=2,3 keras=3,legacy rtol=1e-5 kill=3lines
"""A GAN as a plain class with a tf.function of its own, as TensorFlow's DCGAN tutorial has it."""

import os
import tempfile
import time

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


class GAN:
    def __init__(self, latent=16):
        self.latent = latent
        self.generator = keras.Sequential(
            [keras.Input((latent,)), layers.Dense(64, activation="relu"), layers.Dense(64, activation="tanh")]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(1)]
        )
        self.g_optimizer = keras.optimizers.Adam(1e-3)
        self.d_optimizer = keras.optimizers.Adam(1e-3)
        self.checkpoint = tf.train.Checkpoint(generator=self.generator, discriminator=self.discriminator)

    @tf.function
    def train_step(self, images):
        noise = tf.random.normal([tf.shape(images)[0], self.latent])
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            generated = self.generator(noise, training=True)
            real = self.discriminator(images, training=True)
            fake = self.discriminator(generated, training=True)
            g_loss = cross_entropy(tf.ones_like(fake), fake)
            d_loss = cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)
        g_weights, d_weights = self.generator.trainable_variables, self.discriminator.trainable_variables
        self.g_optimizer.apply_gradients(zip(gen_tape.gradient(g_loss, g_weights), g_weights))
        self.d_optimizer.apply_gradients(zip(disc_tape.gradient(d_loss, d_weights), d_weights))
        return g_loss, d_loss

    def train(self, dataset, epochs):
        for epoch in range(epochs):
            start = time.time()
            for batch in dataset:
                g_loss, d_loss = self.train_step(batch)
            print("losses", float(g_loss), float(d_loss))
            print(f"epoch {epoch + 1} took {time.time() - start:.1f}s")
            self.checkpoint.save(os.path.join("training_checkpoints", "ckpt"))


images = (load_digits().images / 8.0 - 1.0).reshape(-1, 64).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(2000).batch(256)
gan = GAN()
gan.train(dataset, epochs=3)
gan.checkpoint.restore(tf.train.latest_checkpoint("training_checkpoints"))
place = os.path.join(tempfile.gettempdir(), "plain_gan.keras")
for _ in range(5):
    gan.generator.save(place)
    loaded = keras.models.load_model(place)
print("loaded", float(tf.reduce_sum(loaded(tf.ones([1, gan.latent])))))
sample = gan.generator(tf.ones([1, gan.latent]), training=False)
print("sample", float(tf.reduce_mean(sample)))
