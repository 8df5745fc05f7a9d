"""Data and model of the scripts beside it, as `mnist_setup.py` is in TensorFlow's guides."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def digits():
    data = load_digits()
    images = (data.images[..., np.newaxis] / 16.0).astype(np.float32)
    return images[:1792], data.target[:1792].astype(np.int64)  # 14 batches of 128


def digits_dataset(batch_size):
    x_train, y_train = digits()
    train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    # Alike in every epoch, so that a program that was restored in between sees the same batches.
    train_dataset = train_dataset.shuffle(2000, seed=1, reshuffle_each_iteration=False)
    return train_dataset.repeat().batch(batch_size)


def build_cnn_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer((8, 8, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def build_and_compile_cnn_model():
    model = build_cnn_model()
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model
