# check: workers=2 keras=3,legacy rtol=1e-4 kill=25
"""An absolute folder that is there already with the files of an earlier training, and pathlib paths."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

keras.utils.set_random_seed(17)
x, y = load_wine(return_X_y=True)
x = scale(x)
places = [Path.cwd() / "models", Path(tempfile.gettempdir()) / "plain_old_files"]


def build():
    model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(folder):
    model = build()
    if (folder / "last.weights.h5").exists():
        model.load_weights(folder / "last.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/last.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(str(folder / "best-{epoch:02d}.keras"), save_best_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv", append=True),
        keras.callbacks.TensorBoard(folder / "logs"),
        keras.callbacks.ReduceLROnPlateau(patience=1),
    ]
    model.fit(x, y, epochs=2, validation_split=0.2, shuffle=False, verbose=0, callbacks=callbacks)
    return model


for folder in places:
    folder.mkdir(parents=True, exist_ok=True)
    train(folder)
    model = train(folder)
    again = build()
    again.load_weights(folder / "last.weights.h5")
    pairs = zip(again.get_weights(), model.get_weights())
    print("again", *[float(np.abs(one - two).max()) for one, two in pairs])
    best = sorted(folder.glob("best-*.keras"))[-1]
    print("best", *keras.models.load_model(best).evaluate(x, y, verbose=0))
    print("log", len((folder / "log.csv").read_text().splitlines()))
