# check: workers=2,2,3 keras=3,legacy,3 kill=22
"""Saves a model in each format, loads each, and trains on after loading."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_iris
from tensorflow import keras

keras.utils.set_random_seed(13)
x, y = load_iris(return_X_y=True)
order = np.random.permutation(len(x))
x, y = x[order].astype("float32"), y[order]


def build():
    model = keras.Sequential(
        [
            keras.layers.Dense(10, activation="relu", input_shape=(4,)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


model = build()
model.fit(x, y, epochs=3, batch_size=30, verbose=0)
expected = model.predict(x, verbose=0)
os.makedirs("saved", exist_ok=True)

model.save("saved/model.keras")
model.save("saved/model.h5")
model.save_weights("saved/model.weights.h5")
model.export("saved/exported")
with open("saved/model.json", "w") as file:
    file.write(model.to_json())
with open("saved/weights.txt", "w") as file:
    file.write(json.dumps([one.tolist() for one in model.get_weights()]))

for path in ("saved/model.keras", "saved/model.h5"):
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, rtol=1e-5)
    print(path, loaded.evaluate(x, y, verbose=0))

rebuilt = build()
rebuilt.load_weights("saved/model.weights.h5")
print("weights", rebuilt.evaluate(x, y, verbose=0))

from_json = keras.models.model_from_json(open("saved/model.json").read())
from_json.set_weights(model.get_weights())
print("json", np.abs(from_json.predict(x, verbose=0) - expected).max() < 1e-6)

serving = tf.saved_model.load("saved/exported")
print("exported", np.abs(serving.serve(x).numpy() - expected).max() < 1e-6)

clone = keras.models.clone_model(model)
clone.set_weights(model.get_weights())
clone.compile("sgd", "sparse_categorical_crossentropy")
print("clone", clone.evaluate(x, y, verbose=0))

# The optimizer goes on where it was.
loaded = keras.models.load_model("saved/model.keras")
history = loaded.fit(x, y, epochs=5, initial_epoch=3, batch_size=30, verbose=2)
model.fit(x, y, epochs=5, initial_epoch=3, batch_size=30, verbose=2, shuffle=False)
print(loaded.evaluate(x, y, verbose=0), int(loaded.optimizer.iterations))
loaded.save("saved/final.keras")
print(sorted(os.listdir("saved")), sorted(os.listdir("saved/exported")))
