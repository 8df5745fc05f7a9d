# check: workers=2,3 keras=legacy,3 kill=30
"""A model with a train_step of its own, as the guide to customizing fit has it."""

import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from tensorflow import keras

keras.utils.set_random_seed(2)


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


x, y = load_breast_cancer(return_X_y=True)
x, y = scale(x).astype("float32"), y.astype("float32")[:, None]
inputs = keras.Input(shape=(30,))
hidden = keras.layers.Dense(16, activation="tanh")(inputs)
outputs = keras.layers.Dense(1)(hidden)
model = CustomModel(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
history = model.fit(x[:480], y[:480], epochs=4, batch_size=32, validation_data=(x[480:], y[480:]))
print(history.history)
print(model.evaluate(x[480:], y[480:], verbose=0))
print(model.predict(x[:5], verbose=0).ravel())
model.save_weights("custom.weights.h5")
