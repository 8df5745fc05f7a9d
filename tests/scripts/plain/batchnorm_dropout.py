# check: workers=2 keras=3,legacy plain=no virtual_replicas=4 kill=15
"""Layers that depend on the whole batch, or on chance."""

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(4)
digits = load_digits()
x, y = (digits.data / 16.0).astype("float32")[:800], digits.target[:800]

model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(32, use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
        layers.Dropout(0.3),
        layers.GaussianNoise(0.1),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=64, epochs=3, validation_split=0.2, verbose=0)
print("loss", *history.history["loss"], *history.history["val_loss"])
print("weights", *[float(np.sum(one, dtype="float64")) for one in model.get_weights()])
