# check: workers=2,3 keras=legacy,3 rtol=1e-4 kill=32
"""Checkpoints in temporary folders, of another name in each process, and in folders named by time."""

import os
import shutil
import tempfile
import time
import uuid

from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

keras.utils.set_random_seed(14)
x, y = load_wine(return_X_y=True)
x = scale(x)


def build():
    model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(folder):
    model = build()
    best = os.path.join(folder, "best.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
        keras.callbacks.ModelCheckpoint(os.path.join(folder, "epoch{epoch:02d}.keras")),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        keras.callbacks.TensorBoard(os.path.join(folder, "logs")),
    ]
    model.fit(x, y, epochs=3, validation_split=0.2, verbose=0, callbacks=callbacks)
    model.load_weights(best)
    print("best", *model.evaluate(x, y, verbose=0))
    model.save(os.path.join(folder, "model.keras"))
    loaded = keras.models.load_model(os.path.join(folder, "model.keras"))
    print("loaded", *loaded.evaluate(x, y, verbose=0))
    second = keras.models.load_model(os.path.join(folder, "epoch02.keras"))
    print("second", *second.evaluate(x, y, verbose=0))
    with open(os.path.join(folder, "log.csv")) as file:
        print("lines", len(file.readlines()))
    print("files", *sorted(len(name) for name in os.listdir(folder)))


folder = tempfile.mkdtemp()
train(folder)
shutil.rmtree(folder)
with tempfile.TemporaryDirectory(prefix="run-") as folder:
    train(folder)
train(os.path.join("runs", time.strftime("%Y%m%d-%H%M%S")))
train(os.path.join(tempfile.gettempdir(), f"{time.time_ns()}-{uuid.uuid4()}"))
with tempfile.NamedTemporaryFile(suffix=".weights.h5") as file:
    model = build()
    model.save_weights(file.name)
    model.load_weights(file.name)
