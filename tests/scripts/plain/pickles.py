# check: workers=2 keras=3,legacy rtol=1e-4 kill=8
"""Leaves what people leave: pickles, joblib files, json of the history, logs by logging, text and arrays."""

import json
import logging
import pickle
from pathlib import Path

import joblib
import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from tensorflow import keras

OUT = Path("results") / "wine"
OUT.mkdir(parents=True, exist_ok=True)
log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.addHandler(logging.FileHandler(OUT / "train.log"))

keras.utils.set_random_seed(13)
x, y = load_wine(return_X_y=True)
scaler = StandardScaler().fit(x)
joblib.dump(scaler, OUT / "scaler.joblib")
x = joblib.load(OUT / "scaler.joblib").transform(x)


class Logs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        log.info("epoch %d: %s", epoch, sorted(logs))


model = keras.Sequential(
    [
        keras.Input((13,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
checkpoint = keras.callbacks.ModelCheckpoint(str(OUT / "best.keras"), monitor="val_loss", save_best_only=True)
history = model.fit(x, y, epochs=3, validation_split=0.2, verbose=0, callbacks=[Logs(), checkpoint])
log.info("done after %d epochs", len(history.epoch))

(OUT / "history.json").write_text(json.dumps(history.history))
with open(OUT / "history.pkl", "wb") as file:
    pickle.dump(sorted(history.history), file)
with open(OUT / "architecture.json", "w") as file:
    file.write(model.to_json())
np.savetxt(OUT / "kernel.csv", model.layers[0].get_weights()[0], delimiter=" ")
joblib.dump({"classes": [0, 1, 2]}, OUT / "meta.joblib", compress=3)
model.save(OUT / "last.keras")
model.save_weights(OUT / "last.weights.h5")
rebuilt = keras.models.model_from_json((OUT / "architecture.json").read_text())
rebuilt.load_weights(OUT / "last.weights.h5")
best = keras.models.load_model(OUT / "best.keras")
best_loss = min(json.loads((OUT / "history.json").read_text())["val_loss"])
print("best", best_loss, *best.evaluate(x, y, verbose=0))
print("rebuilt", float(rebuilt.predict(x, verbose=0)[:, 0].sum()))
copied = keras.models.clone_model(model)
if hasattr(keras.utils, "PyDataset"):  # Keras 3
    copied = pickle.loads(pickle.dumps(model))
print("copied", len(copied.get_weights()))
print("log", *[len(line.split()) for line in (OUT / "train.log").read_text().splitlines()])
