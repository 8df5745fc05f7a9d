# check: workers=2 keras=3,legacy rtol=1e-4 kill=30
"""Data by threads and processes: a pool that prepares, a Sequence that loads, a queue in a generator."""

import multiprocessing
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

keras.utils.set_random_seed(12)
digits = load_digits()


def prepare(image):
    return (np.pad(image, 1) / 16.0).astype("float32")


class Batches(keras.utils.Sequence):
    def __init__(self, x, y, size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        with ThreadPoolExecutor(2) as threads:
            images = list(threads.map(lambda one: one * 2.0 - 1.0, self.x[part]))
        return np.stack(images), self.y[part]


def from_queue(x, y, size):
    waiting = queue.Queue(4)

    def fill():
        for start in range(0, len(x), size):
            waiting.put((x[start : start + size], y[start : start + size]))
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := waiting.get()) is not None:
        yield batch


def build():
    model = keras.Sequential(
        [keras.Input((10, 10)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        x = np.stack(pool.map(prepare, list(digits.images[:640]), chunksize=160))
    y = digits.target[:640]
    print("prepared", float(x.sum()))
    threaded = {"workers": 2} if hasattr(keras.utils, "PyDataset") else {}
    model = build()
    history = model.fit(Batches(x, y, 64, **threaded), epochs=2, shuffle=False, verbose=0)
    print("sequence", *history.history["loss"])

    spec = (tf.TensorSpec((None, 10, 10), tf.float32), tf.TensorSpec((None,), tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: from_queue(x, y, 64), output_signature=spec)
    model = build()
    history = model.fit(dataset, epochs=2, verbose=0)
    print("generator", *history.history["loss"])
    model = build()
    history = model.fit(from_queue(x, y, 64), verbose=0)
    print("plain generator", *history.history["loss"])
