# check: workers=2,3 keras=legacy,3 rtol=1e-4 kill=15
"""Two inputs and two outputs, with losses of one's own and weights for them."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(2)
x, y = load_diabetes(return_X_y=True)
measures, person = x[:, 4:].astype("float32") * 20, x[:, :4].astype("float32") * 20
high = (y > 140).astype("float32")
target = (y / 100.0).astype("float32")


def quantile_loss(q):
    def loss(y_true, y_pred):
        error = y_true - y_pred
        return tf.reduce_mean(tf.maximum(q * error, (q - 1) * error), axis=-1)

    return loss


def focal(y_true, y_pred):
    y_pred = tf.clip_by_value(y_pred, 1e-6, 1 - 1e-6)
    p = tf.where(tf.equal(y_true, 1), y_pred, 1 - y_pred)
    return -tf.reduce_mean((1 - p) ** 2 * tf.math.log(p), axis=-1)


def within(y_true, y_pred):
    return tf.reduce_mean(tf.cast(tf.abs(y_true - y_pred) < 0.5, "float32"), axis=-1)


first, second = keras.Input((6,), name="measures"), keras.Input((4,), name="person")
parts = [layers.Dense(8, activation="relu")(first), layers.Dense(4, activation="relu")(second)]
h = layers.concatenate(parts)
value = layers.Dense(1, name="value")(h)
risk = layers.Dense(1, activation="sigmoid", name="risk")(h)
model = keras.Model(inputs={"measures": first, "person": second}, outputs={"value": value, "risk": risk})
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={"value": quantile_loss(0.7), "risk": focal},
    loss_weights={"value": 1.0, "risk": 0.5},
    metrics={"value": [within], "risk": ["accuracy"]},
)
inputs = {"measures": measures, "person": person}
history = model.fit(
    inputs,
    {"value": target[:, None], "risk": high[:, None]},
    sample_weight={"value": np.linspace(0.5, 1.5, len(y)), "risk": np.ones(len(y))},
    epochs=3,
    batch_size=50,
    shuffle=False,
    verbose=0,
)
for name in sorted(history.history):
    print(name, *history.history[name])
predicted = model.predict(inputs, batch_size=64, verbose=0)
print("predicted", float(predicted["value"].mean()), float(predicted["risk"].mean()))
