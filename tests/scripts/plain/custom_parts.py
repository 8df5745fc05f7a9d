# check: workers=2,3 keras=3,legacy rtol=1e-4 kill=20
"""Layers with weights and state of their own, a metric, a loss and an optimizer of one's own."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes
from tensorflow import keras

keras.utils.set_random_seed(11)


class Linear(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="glorot_uniform", name="w")
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", name="b")

    def call(self, inputs):
        return tf.matmul(inputs, self.w) + self.b

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class WarmUp(keras.layers.Layer):
    """Counts the steps of training, and lets more of its input through with each."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, inputs, training=False):
        if training:
            self.steps.assign_add(1.0)
        return inputs * tf.minimum(0.5 + self.steps / 20.0, 1.0)


class RootMeanSquare(keras.metrics.Metric):
    def __init__(self, name="rms", **kwargs):
        super().__init__(name=name, **kwargs)
        self.squares = self.add_weight(name="squares", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.squares.assign_add(tf.reduce_sum(tf.square(y_true - y_pred)))
        self.seen.assign_add(tf.cast(tf.size(y_true), "float32"))

    def result(self):
        return tf.sqrt(self.squares / self.seen)


class Huberish(keras.losses.Loss):
    def call(self, y_true, y_pred):
        error = tf.abs(y_true - y_pred)
        return tf.reduce_mean(tf.where(error < 1.0, 0.5 * error**2, error - 0.5), axis=-1)


class SignedSGD(keras.optimizers.SGD):
    """Goes by the sign and the square root of the gradient."""

    def update_step(self, gradient, variable, *rate):
        step = tf.sign(gradient) * tf.sqrt(tf.abs(gradient) + 1e-6)
        super().update_step(step, variable, *rate)


x, y = load_diabetes(return_X_y=True)
x, y = x.astype("float32") * 20, (y[:, None] / 100.0).astype("float32")
model = keras.Sequential([keras.Input((10,)), Linear(8), WarmUp(), keras.layers.ReLU(), Linear(1)])
model.compile(optimizer=SignedSGD(0.01), loss=Huberish(), metrics=[RootMeanSquare()])
history = model.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
print("loss", *history.history["loss"])
print("rms", *history.history["rms"])
print("steps", float(model.layers[1].steps.numpy()))
names = ("Linear", "WarmUp", "RootMeanSquare", "Huberish", "SignedSGD")
model.save("custom.keras")
again = keras.models.load_model("custom.keras", custom_objects={name: globals()[name] for name in names})
print("again", *again.evaluate(x, y, verbose=0))
print("weights", *[float(np.sum(one)) for one in again.get_weights()])
