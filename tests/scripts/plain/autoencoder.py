# check: workers=1,2 keras=3 kill=25
"""Compresses digits with an autoencoder, keeps its codes and pictures of what it makes of them."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

keras.utils.set_random_seed(11)
x = (load_digits().data / 16.0).astype("float32")
x_train, x_test = x[:1500], x[1500:]
print(x_train.shape, x_test.shape)

encoding_dim = 8
input_img = keras.Input(shape=(64,))
encoded = layers.Dense(32, activation="relu")(input_img)
encoded = layers.Dense(encoding_dim, activation="relu")(encoded)
decoded = layers.Dense(32, activation="relu")(encoded)
decoded = layers.Dense(64, activation="sigmoid")(decoded)

autoencoder = keras.Model(input_img, decoded)
encoder = keras.Model(input_img, encoded)
encoded_input = keras.Input(shape=(encoding_dim,))
decoder = keras.Model(encoded_input, autoencoder.layers[-1](autoencoder.layers[-2](encoded_input)))

autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x_train, x_train, epochs=4, batch_size=128, shuffle=True, validation_data=(x_test, x_test), verbose=2
)

encoded_imgs = encoder.predict(x_test)
decoded_imgs = decoder.predict(encoded_imgs)
print("error", np.mean((decoded_imgs - x_test) ** 2))
pca = PCA(encoding_dim).fit(x_train)
print("error of PCA", np.mean((pca.inverse_transform(pca.transform(x_test)) - x_test) ** 2))
np.savez("codes.npz", codes=encoded_imgs, images=decoded_imgs)
picture = np.concatenate([x_test[:8].reshape(-1, 8), decoded_imgs[:8].reshape(-1, 8)], axis=1)
tf.io.write_file("digits.png", tf.io.encode_png((picture[..., None] > 0.5).astype("uint8") * 255))
encoder.save("encoder.keras")
