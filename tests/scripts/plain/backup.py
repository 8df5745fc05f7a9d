# check: workers=2 keras=legacy,3 rtol=1e-4 kill=70
"""Continues from a backup on an absolute path, as a training that was killed before does."""

import os
import tempfile

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

x, y = load_wine(return_X_y=True)
x = scale(x)


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch)
        if epoch == 2 and self.stops:
            raise RuntimeError("interrupted")


def train(folder, stops):
    keras.utils.set_random_seed(18)
    model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    interrupt = Interrupt()
    interrupt.stops = stops
    callbacks = [keras.callbacks.BackupAndRestore(folder), interrupt]
    model.fit(x, y, epochs=4, batch_size=32, shuffle=False, verbose=0, callbacks=callbacks)
    return model


expected = train(os.path.join("backups", "whole"), False)
temporary, absolute = tempfile.mkdtemp(), os.path.join(tempfile.gettempdir(), "plain_backup")
for folder in (os.path.join("backups", "relative"), os.path.join(temporary, "backup"), absolute):
    try:
        train(folder, True)
    except RuntimeError as error:
        print("stopped", int("interrupted" in str(error)))
    model = train(folder, False)
    pairs = zip(model.get_weights(), expected.get_weights())
    print("differs", *[float(np.abs(one - two).max()) for one, two in pairs])
