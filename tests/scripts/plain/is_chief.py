# check: workers=3,2 keras=3,legacy rtol=1e-4 kill=8
"""Uses raydist for one thing: only the chief shows and writes."""

import json

from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

import raydist

ctx = raydist.context()
is_chief = ctx is None or ctx.is_chief
keras.utils.set_random_seed(16)
x, y = load_wine(return_X_y=True)
x = scale(x)
model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)] if is_chief else []
history = model.fit(x, y, epochs=3, validation_split=0.2, verbose=0, callbacks=callbacks)
results = model.evaluate(x, y, verbose=0)
if is_chief:
    model.save("model.keras")
    with open("results.json", "w") as file:
        json.dump({"results": results, **history.history}, file)
print("results", *results)
