# check: workers=mirrored,2,3 keras=legacy,3,3 kill=5
"""Sets TensorFlow up, and looks at losses, metrics and gradients by hand, outside of fit."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(2)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
keras.utils.set_random_seed(3)

x = np.random.normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
with tf.device("/CPU:0"):
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
    predicted = model(x)

for loss in (keras.losses.BinaryCrossentropy(), keras.losses.MeanSquaredError(reduction="sum")):
    print(loss.name, float(loss(y, predicted)), float(loss(y, predicted, sample_weight=np.arange(64.0))))
print("function", float(tf.reduce_mean(keras.losses.binary_crossentropy(y, predicted))))
for metric in (
    keras.metrics.MeanAbsoluteError(),
    keras.metrics.BinaryAccuracy(),
    keras.metrics.AUC(name="auc"),
):
    metric.update_state(y, predicted)
    metric.update_state(y[:7], predicted[:7])
    whole = float(metric.result())
    metric.reset_state()
    print(metric.name, whole, float(metric(y[:30], predicted[:30])))

normalize = keras.layers.Normalization()
normalize.adapt(x)
print("normalized", normalize(x[:2]).numpy())
total = tf.Variable([1.0, 2.0])
print("variable", total.numpy(), [one.shape for one in model.get_weights()])

inputs = tf.constant(x[:2])
with tf.GradientTape() as tape:
    tape.watch(inputs)
    loss_value = keras.losses.BinaryCrossentropy()(y[:2], model(inputs))
print("saliency", float(loss_value), tape.gradient(loss_value, inputs).numpy())

with tf.GradientTape() as tape:
    loss_value = keras.losses.BinaryCrossentropy()(y, model(x))
gradients = tape.gradient(loss_value, model.trainable_variables)
print("gradients", float(loss_value), [float(tf.reduce_sum(tf.abs(one))) for one in gradients])

model.compile("adam", keras.losses.BinaryCrossentropy(), metrics=["accuracy"])
print(model.fit(x, y, epochs=2, verbose=0).history)
keras.backend.clear_session()
model.layers[0].trainable = False
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
model.optimizer.learning_rate = 0.05
print(model.fit(x, y, epochs=2, verbose=0).history, float(model.optimizer.learning_rate))
print("after", float(keras.losses.BinaryCrossentropy()(y, model(x))))

tf.config.run_functions_eagerly(True)
print("eager", model.predict(x[:9], verbose=0).tolist(), model.evaluate(x, y, verbose=0))
tf.config.run_functions_eagerly(False)
