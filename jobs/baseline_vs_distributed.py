"""The same model without a strategy and with one: times and results side by side.

raydist submit jobs/baseline_vs_distributed.py --workers 2
raydist submit jobs/baseline_vs_distributed.py --strategy mirrored --devices 2
raydist submit jobs/baseline_vs_distributed.py --workers 2 -p data_dir=/data/flower_photos -p image_size=128

`data_dir` is a folder with one folder of images for each class, such as TensorFlow's flower photographs
(https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz). Without it the job
takes the digits. On such small images the all-reduce of each step costs more than the second worker saves.
"""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf
from mnist_images import load_digits

import raydist


@raydist.job(
    workers=2,
    params={"epochs": 3, "batch_size": 64, "learning_rate": 1e-3, "image_size": 128, "data_dir": ""},
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    source, num_classes = load_source(params["data_dir"], params["image_size"])
    data = source.batches(
        global_batch_size=params["batch_size"], seed=1
    )  # one order, on any number of workers
    shape = next(iter(data))[0].shape[1:]

    tf.keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = build_model(shape, num_classes, params["learning_rate"])
    started = time.monotonic()
    distributed = ctx.fit(model, data, epochs=params["epochs"]).history
    distributed_s = time.monotonic() - started

    if not ctx.is_chief:
        return  # one baseline is enough, and it has the machine to itself
    tf.keras.utils.set_random_seed(1)
    baseline_model = build_model(shape, num_classes, params["learning_rate"])  # outside of any scope
    started = time.monotonic()
    baseline = baseline_model.fit(
        data.for_epochs(params["epochs"]).dataset(),
        epochs=params["epochs"],
        steps_per_epoch=-(-len(source) // params["batch_size"]),
        verbose=2,
    ).history
    baseline_s = time.monotonic() - started

    both = zip(model.get_weights(), baseline_model.get_weights(), strict=True)
    ctx.report(
        {
            "baseline/loss": baseline["loss"][-1],
            "distributed/loss": distributed["loss"][-1],
            "baseline/accuracy": baseline["accuracy"][-1],
            "distributed/accuracy": distributed["accuracy"][-1],
            "baseline/seconds": baseline_s,
            "distributed/seconds": distributed_s,
            "speed_up": baseline_s / distributed_s,
            "weights_differ_by": max(np.abs(one - other).max() for one, other in both),
        }
    )


def load_source(data_dir, image_size):
    """Returns a source of (image, label), and the number of classes."""
    if data_dir:
        source = raydist.data.from_images(data_dir, size=(image_size, image_size))
        return source, len(source.class_names)
    (images, labels), _ = load_digits()
    return raydist.data.from_arrays(images * 255.0, labels), 10


def build_model(shape, num_classes, learning_rate):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
