# check: workers=2 keras=legacy,3 rtol=1e-3 kill=20
"""Transfer learning: freeze, fit, unfreeze, compile anew with a small rate, fit."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

tf.keras.utils.set_random_seed(0)
digits = load_digits()
images = np.repeat(digits.images[..., None], 3, axis=-1).astype("float32") * 16.0
images = tf.image.resize(images, (32, 32)).numpy()
x_train, y_train = images[:256], digits.target[:256]
x_val, y_val = images[256:384], digits.target[256:384]

# weights="imagenet", if there were a network
base_model = keras.applications.MobileNet(
    input_shape=(32, 32, 3), alpha=0.25, include_top=False, weights=None, pooling="avg"
)
base_model.trainable = False

inputs = keras.Input(shape=(32, 32, 3))
x = keras.applications.mobilenet.preprocess_input(inputs)
x = base_model(x, training=False)
x = keras.layers.Dropout(0.0)(x)
outputs = keras.layers.Dense(10)(x)
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
frozen = base_model.get_weights()[0].copy()
history = model.fit(x_train, y_train, epochs=2, batch_size=32, validation_data=(x_val, y_val), verbose=0)
print("head", *history.history["loss"], *history.history["val_loss"])
print("unchanged", float(np.abs(base_model.get_weights()[0] - frozen).max()))

base_model.trainable = True
for number, layer in enumerate(base_model.layers):
    if number < 50 or isinstance(layer, keras.layers.BatchNormalization):
        layer.trainable = False
model.compile(keras.optimizers.Adam(1e-5), loss=loss, metrics=["accuracy"])
print("trainable", len(model.trainable_variables))
fine = model.fit(
    x_train,
    y_train,
    epochs=4,
    initial_epoch=history.epoch[-1] + 1,
    batch_size=32,
    validation_data=(x_val, y_val),
    verbose=0,
)
print("tuned", *fine.history["loss"], *fine.history["val_loss"])
model.save("fine_tuned.keras")
again = keras.models.load_model("fine_tuned.keras")
print("loaded", *again.evaluate(x_val, y_val, verbose=0))
