# check: workers=2,3 keras=3,legacy kill=40
"""Callbacks of one's own: predictions at each epoch's end, a count of batches, a stop at a target."""

import os
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import make_moons
from sklearn.metrics import f1_score

tf.keras.utils.set_random_seed(21)
X, y = make_moons(n_samples=500, noise=0.2, random_state=0)
X_train, X_test, y_train, y_test = X[:400], X[400:], y[:400], y[400:]
os.makedirs("predictions")


class PredictionSaver(tf.keras.callbacks.Callback):
    def __init__(self, data, labels):
        super().__init__()
        self.data, self.labels, self.scores = data, labels, []

    def on_epoch_end(self, epoch, logs=None):
        predicted = self.model.predict(self.data, verbose=0)
        np.save(f"predictions/epoch_{epoch}.npy", predicted)
        pixels = np.uint8(255 * predicted.reshape(10, 10, 1))
        tf.io.write_file(f"predictions/epoch_{epoch}.txt", str(pixels.shape))
        self.scores.append(f1_score(self.labels, predicted[:, 0] > 0.5))
        print(f" - val_f1: {self.scores[-1]:.4f}")


class TimeHistory(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.times, self.batches, self.losses = [], 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.time()

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.times.append(time.time() - self.start)


class StopAt(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if logs.get("accuracy") > 0.85:
            print("\nReached 85% accuracy so cancelling training!")
            self.model.stop_training = True


model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(16, activation="tanh", input_dim=2),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(loss="binary_crossentropy", optimizer=tf.keras.optimizers.Adam(0.02), metrics=["accuracy"])
saver, times = PredictionSaver(X_test, y_test), TimeHistory()
history = model.fit(X_train, y_train, epochs=8, verbose=2, callbacks=[saver, times, StopAt()])
print(len(times.times), "epochs", times.batches, "batches", sorted(os.listdir("predictions")))
print("losses", times.losses[::10])
print("best f1", max(saver.scores), history.history["loss"])
