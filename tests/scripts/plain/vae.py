# check: workers=2 keras=3,legacy plain=one kill=80
"""A variational autoencoder with a Sampling layer and add_loss: chance makes it another training."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(7)
LATENT = 2


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to sample z."""

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = tf.random.normal(shape=tf.shape(z_mean))
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


class KLDivergence(layers.Layer):
    def call(self, inputs):
        z_mean, z_log_var = inputs
        kl = -0.5 * tf.reduce_sum(1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var), axis=1)
        self.add_loss(tf.reduce_mean(kl) / 64)
        return inputs


digits = load_digits()
x = (digits.data / 16.0).astype("float32")
x_train, x_test = x[:1500], x[1500:]

encoder_inputs = keras.Input(shape=(64,))
h = layers.Dense(32, activation="relu")(encoder_inputs)
z_mean = layers.Dense(LATENT, name="z_mean")(h)
z_log_var = layers.Dense(LATENT, name="z_log_var")(h)
z_mean, z_log_var = KLDivergence()([z_mean, z_log_var])
z = Sampling()([z_mean, z_log_var])
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, z], name="encoder")

latent_inputs = keras.Input(shape=(LATENT,))
h = layers.Dense(32, activation="relu")(latent_inputs)
decoder = keras.Model(latent_inputs, layers.Dense(64, activation="sigmoid")(h), name="decoder")

vae = keras.Model(encoder_inputs, decoder(encoder(encoder_inputs)[2]), name="vae")
vae.compile(optimizer="adam", loss="binary_crossentropy")
history = vae.fit(x_train, x_train, batch_size=50, epochs=5, validation_data=(x_test, x_test), verbose=0)
print("loss", history.history["loss"][0], history.history["loss"][-1])
print("validation", history.history["val_loss"][-1])
codes = encoder.predict(x_test, verbose=0)[0]
print("codes shape", *codes.shape)
np.savez("codes.npz", codes=codes, labels=digits.target[1500:])
