# check: workers=2,3 keras=3,legacy kill=60
"""Data from Python generators, from a Sequence, and from tf.data's from_generator."""

import math

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

keras.utils.set_random_seed(3)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
y = keras.utils.to_categorical(y, 10)
x_train, y_train, x_test, y_test = x[:1024], y[:1024], x[1024:1400], y[1024:1400]


def batch_generator(features, labels, batch_size):
    rng = np.random.RandomState(0)
    while True:
        indices = rng.choice(len(features), batch_size)
        yield features[indices], labels[indices]


class DigitsSequence(keras.utils.Sequence):
    def __init__(self, x_set, y_set, batch_size):
        super().__init__()
        self.x, self.y, self.batch_size = x_set, y_set, batch_size
        self.order = np.arange(len(x_set))

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        rows = self.order[idx * self.batch_size : (idx + 1) * self.batch_size]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.order = self.order[::-1]


model = keras.Sequential(
    [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10, activation="softmax")]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
print("generator")
model.fit(
    batch_generator(x_train, y_train, 64),
    steps_per_epoch=10,
    epochs=2,
    validation_data=(x_test, y_test),
)
print("sequence")
model.fit(DigitsSequence(x_train, y_train, 50), epochs=2, validation_data=DigitsSequence(x_test, y_test, 50))
print(model.evaluate(DigitsSequence(x_test, y_test, 64), verbose=0))
print(model.predict(DigitsSequence(x_test, y_test, 64), verbose=0).shape)


def rows():
    for one, label in zip(x_train, y_train):
        yield one, label


signature = (tf.TensorSpec((64,), tf.float32), tf.TensorSpec((10,), tf.float32))
dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
# Adam would count one step more than there are at the end of each epoch of data of unknown length.
model.compile(loss="categorical_crossentropy", optimizer="sgd", metrics=["accuracy"])
print("from_generator")
model.fit(dataset.shuffle(200, seed=4).batch(60).prefetch(2), epochs=2, verbose=2)
print("repeat")
model.fit(dataset.repeat().batch(32), steps_per_epoch=12, epochs=2, verbose=2)
print(model.evaluate(x_test, y_test, verbose=0))
