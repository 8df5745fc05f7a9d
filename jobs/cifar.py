"""The CIFAR-10 convolutional network, under any strategy.

raydist submit jobs/cifar.py
raydist submit jobs/cifar.py --workers 4 -p epochs=20 -p data=cifar10 -p data_dir=/data/cifar

`data` is `cifar10`, `digits` (needs no network), or `auto`: CIFAR-10 where every task can have it. Both are
loaded in cifar_images.py. cifar_data.py trains on the same images in Parquet, TFRecord and image files.
"""

from __future__ import annotations

import tensorflow as tf
from cifar_images import load_images

import raydist


@raydist.job(
    workers=2,
    params={"epochs": 5, "batch_size": 128, "learning_rate": 1e-3, "data": "auto", "data_dir": ""},
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    train_set, test_set = load_images(ctx)
    train_data = raydist.data.from_arrays(*train_set)
    test_data = raydist.data.from_arrays(*test_set)
    with ctx.strategy.scope():
        model = build_model(params["learning_rate"])
    ctx.fit(
        model,
        train_data.batches(global_batch_size=params["batch_size"], seed=1).map(scale),
        epochs=params["epochs"],
        validation_data=test_data.batches(global_batch_size=params["batch_size"], shuffle=False).map(scale),
    )


def build_model(learning_rate):
    """Returns the compiled network of TensorFlow's CIFAR-10 tutorial."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def scale(images, labels):
    """Returns pixels in 0..1, as each batch is read."""
    return tf.cast(images, tf.float32) / 255.0, labels
