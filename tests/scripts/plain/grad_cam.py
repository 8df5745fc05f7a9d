# check: workers=2 keras=legacy,3 rtol=1e-3
"""Grad-CAM and a saliency map after fit: a GradientTape that only looks."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(6)
digits = load_digits()
x, y = (digits.images / 16.0)[..., None].astype("float32")[:640], digits.target[:640]
inputs = keras.Input((8, 8, 1))
h = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
h = layers.Conv2D(8, 3, padding="same", activation="relu", name="last_conv")(h)
model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(h)))
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss_fn, metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0)


def make_gradcam_heatmap(image, model, layer_name):
    grad_model = keras.Model(model.inputs, [model.get_layer(layer_name).output, model.output])
    with tf.GradientTape() as tape:
        conv_output, preds = grad_model(image)
        class_channel = preds[:, tf.argmax(preds[0])]
    grads = tape.gradient(class_channel, conv_output)
    pooled = tf.reduce_mean(grads, axis=(0, 1, 2))
    heatmap = tf.squeeze(conv_output[0] @ pooled[..., tf.newaxis])
    return (tf.maximum(heatmap, 0) / tf.math.reduce_max(tf.abs(heatmap))).numpy()


heatmap = make_gradcam_heatmap(x[:1], model, "last_conv")
print("heatmap", float(heatmap.sum()))
np.save("heatmap.npy", heatmap)

image = tf.Variable(x[1:2])
with tf.GradientTape() as tape:
    score = tf.reduce_max(model(image))
print("saliency", float(tf.reduce_max(tf.abs(tape.gradient(score, image)))))

with tf.GradientTape() as tape:
    loss = loss_fn(y[:64], model(x[:64], training=False))
norms = [float(tf.norm(grad)) for grad in tape.gradient(loss, model.trainable_weights)]
print("norms", *norms)


@tf.function
def fgsm(image, label):
    with tf.GradientTape() as tape:
        tape.watch(image)
        loss = loss_fn(label, model(image))
    return image + 0.1 * tf.sign(tape.gradient(loss, image))


print("attacked", *model.evaluate(fgsm(tf.constant(x[:64]), y[:64]), y[:64], verbose=0))
