# check: workers=2 keras=3 rtol=1e-4 kill=8
"""Code of TensorFlow 1 beside Keras: a graph and a session of its own."""

import tensorflow as tf
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

keras.utils.set_random_seed(18)
x, y = load_wine(return_X_y=True)
x = scale(x)
with tf.Graph().as_default():
    a = tf.compat.v1.placeholder(tf.float32, [None])
    w = tf.compat.v1.get_variable("w", [], initializer=tf.compat.v1.constant_initializer(3.0))
    b = tf.reduce_sum(a * w)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        print("graph", float(session.run(b, {a: [1.0, 2.0]})))
model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
print("loss", *model.fit(x, y, epochs=2, shuffle=False, verbose=0).history["loss"])
