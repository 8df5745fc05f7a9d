# check: workers=3,2 keras=legacy,3 plain=no virtual_replicas=4 kill=15
"""Seeds nothing: initial weights, the order of the rows and a split are left to chance."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

x, y = load_diabetes(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y / 100)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(1)]
)
model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
history = model.fit(x_train, y_train, epochs=3, batch_size=32, validation_data=(x_test, y_test))
print(history.history)
print("test", model.evaluate(x_test, y_test))
print("predicted", model.predict(x_test[:4]).ravel())
noise = np.random.normal(size=3)
print("noise", noise, "weights", [float(tf.reduce_sum(one)) for one in model.weights])
