"""Keras's `fit` on handwritten digits: one train function for one device, several devices, and several hosts.

raydist submit jobs/mnist.py --strategy one_device
raydist submit jobs/mnist.py --strategy mirrored --devices 2
raydist submit jobs/mnist.py --workers 2

Each replica trains on batches of 64, so the global batch grows with the number of replicas.
To train the same weights on any number of them, keep the product: `-p batch_size_per_replica=32` on two.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(params={"epochs": 5, "batch_size_per_replica": 64, "learning_rate": 1e-3, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    (train_x, train_y), test_data = load_images(ctx)
    # A dataset has the *global* batch size; tf.distribute gives each replica its part of a batch.
    batch_size = ctx.global_batch_size(ctx.params["batch_size_per_replica"])
    train_data = tf.data.Dataset.from_tensor_slices((train_x, train_y))
    train_data = train_data.shuffle(len(train_y), seed=1).batch(batch_size)
    test_data = tf.data.Dataset.from_tensor_slices(test_data).batch(batch_size)

    with ctx.strategy.scope():  # the variables of model, optimizer and metrics are made for the strategy
        model = build_model(train_x.shape[1:])
        model.compile(
            optimizer=tf.keras.optimizers.Adam(ctx.params["learning_rate"]),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    ctx.fit(model, train_data, epochs=ctx.params["epochs"], validation_data=test_data)
    test = ctx.evaluate(model, test_data)
    ctx.report(
        {"global_batch_size": batch_size, "test_loss": test["loss"], "test_accuracy": test["accuracy"]}
    )


def build_model(shape):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
