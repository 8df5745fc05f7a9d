# check: workers=mirrored,2,3 keras=3,3,legacy kill=60
"""All of Keras's callbacks that people use, at once."""

import datetime
import json
import os

import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tensorflow import keras
from tensorflow.keras.callbacks import (
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
)

keras.utils.set_random_seed(9)
x, y = load_wine(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.3, random_state=1, stratify=y)
scaler = StandardScaler().fit(x_train)
x_train, x_val = scaler.transform(x_train), scaler.transform(x_val)


def make_model():
    model = keras.models.Sequential()
    model.add(keras.layers.Dense(12, activation="relu", input_shape=(13,)))
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(keras.optimizers.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def schedule(epoch, lr):
    return lr if epoch < 2 else float(lr * np.exp(-0.1))


os.makedirs("checkpoints", exist_ok=True)
log_dir = "logs/fit/" + datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
model = make_model()
callbacks = [
    EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True, verbose=1),
    LearningRateScheduler(schedule, verbose=1),
    ModelCheckpoint("checkpoints/model-{epoch:02d}-{val_loss:.2f}.keras"),
    ModelCheckpoint("checkpoints/w{epoch}.weights.h5", save_weights_only=True, verbose=1),
    ModelCheckpoint("best.keras", monitor="val_accuracy", mode="max", save_best_only=True, verbose=1),
    CSVLogger("training.csv"),
    CSVLogger("training.tsv", separator="\t", append=True),
    TensorBoard(log_dir=log_dir, histogram_freq=1),
    TerminateOnNaN(),
]
history = model.fit(x_train, y_train, 16, 8, validation_data=(x_val, y_val), callbacks=callbacks, verbose=0)
print(len(history.epoch), "epochs", history.history["val_loss"])
print(sorted(os.listdir("checkpoints")))
print(open("training.csv").read())
print(model.evaluate(x_val, y_val, verbose=0))
print(keras.models.load_model("best.keras").evaluate(x_val, y_val, verbose=0))

model = make_model()
json_log = open("loss_log.jsonl", mode="w", buffering=1)
callbacks = [
    ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=0, min_delta=0.1, min_lr=0.01, verbose=1),
    LambdaCallback(
        on_epoch_end=lambda epoch, logs: json_log.write(
            json.dumps({"epoch": epoch, "loss": logs["loss"]}) + "\n"
        ),
        on_train_end=lambda logs: json_log.close(),
    ),
    LambdaCallback(on_epoch_end=lambda epoch, logs: print(f"epoch {epoch}: {logs['val_loss']:.4f}")),
]
history = model.fit(
    x_train, y_train, batch_size=16, epochs=6, validation_data=(x_val, y_val), callbacks=callbacks, verbose=0
)
print(open("loss_log.jsonl").read())
print({name: [float(one) for one in values] for name, values in history.history.items()})
