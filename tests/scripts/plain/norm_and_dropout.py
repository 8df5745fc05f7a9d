# check: workers=2,2,mirrored keras=3,legacy,legacy plain=no virtual_replicas=4 kill=20
"""A convnet with BatchNormalization, Dropout and noise, which take each replica's own rows."""

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(6)
x, y = load_digits(return_X_y=True)
x = np.expand_dims(x.reshape(-1, 8, 8), -1).astype("float32") / 16
x_train, x_test, y_train, y_test = x[:1400], x[1400:], y[:1400], y[1400:]
print("x_train shape:", x_train.shape)
model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(8, kernel_size=(3, 3), use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.GaussianNoise(0.1),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.summary()
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=100, epochs=3, validation_split=0.1)
score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
