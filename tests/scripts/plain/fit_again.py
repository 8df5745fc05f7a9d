# check: workers=2,2,mirrored keras=legacy,3,legacy rtol=1e-4 kill=60
"""Evaluates before it trains, trains twice, predicts in between, and with other settings of the compile."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.metrics import classification_report, confusion_matrix

np.random.seed(0)
tf.keras.utils.set_random_seed(0)
print("GPUs:", len(tf.config.list_physical_devices("GPU")))
X, y = load_digits(return_X_y=True)
X = X.reshape(-1, 8, 8, 1) / 16.0
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]

model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
predictions = model(X_train[:1]).numpy()
print(predictions, tf.nn.softmax(predictions).numpy())
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
print("initial loss", loss_fn(y_train[:1], predictions).numpy())
model.compile(optimizer="adam", loss=loss_fn, metrics=["accuracy"])
print("before", model.evaluate(X_test, y_test, verbose=0))
first = model.fit(X_train, y_train, epochs=2)
print("between", model.predict(X_test[:3]))
second = model.fit(X_train, y_train, epochs=4, initial_epoch=2, batch_size=100, validation_split=0.25)
print(first.history["loss"] + second.history["loss"], second.epoch)
model.compile(optimizer=tf.keras.optimizers.SGD(0.01, momentum=0.9), loss=loss_fn, metrics=["accuracy"])
third = model.fit(X_train, y_train, verbose=0)
print(third.history)
model.evaluate(X_test, y_test, verbose=2)

probability_model = tf.keras.Sequential([model, tf.keras.layers.Softmax()])
classes = probability_model.predict(X_test).argmax(axis=-1)
print(confusion_matrix(y_test, classes))
print(classification_report(y_test, classes))
print("weights", [float(tf.reduce_sum(tf.abs(one))) for one in model.trainable_variables])
