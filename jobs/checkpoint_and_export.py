"""Checkpoints, a killed worker, an export, and the exported model loaded outside of every strategy.

raydist submit jobs/checkpoint_and_export.py --name calm
raydist submit jobs/checkpoint_and_export.py --name killed -p kill_at_step=30
raydist status killed --checkpoints

Both runs end with the same loss: the second one continues from its last checkpoint, with new processes.
Without the param, `raydist chaos killed --kill worker/1 --at-step 30` in another shell kills too. A run that
was stopped continues with `raydist resume NAME`.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.fs
import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(
    workers=2,
    checkpoint_every="10",  # steps; `epoch` and `60s` work too
    keep=3,
    params={"epochs": 4, "batch_size": 128, "learning_rate": 1e-3, "kill_at_step": 0, "data_dir": ""},
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    train_set, (test_x, test_y) = load_images(ctx)
    # Its order is known by seed and step, so that a resumed run continues with the batch that comes next.
    data = raydist.data.from_arrays(*train_set).batches(global_batch_size=params["batch_size"], seed=1)
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input(test_x.shape[1:]),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(params["learning_rate"]),  # its moments are saved too
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    class Watch(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            ctx.report({"first_step": ctx.step})  # 0, or the step of the checkpoint that was restored

        def on_train_batch_end(self, batch, logs=None):
            is_last_worker = ctx.task.index == ctx.num_workers - 1
            if ctx.attempt == 0 and is_last_worker and ctx.step == params["kill_at_step"]:
                os.kill(os.getpid(), signal.SIGKILL)  # as a host that is lost

    # Saves each 10 steps, restores what an earlier attempt has saved, and exports the model at its end.
    ctx.fit(model, data, epochs=params["epochs"], callbacks=[Watch()])
    test = ctx.evaluate(model, (test_x, test_y))
    results = {"test_loss": test["loss"], "test_accuracy": test["accuracy"]}
    logits = ctx.predict(model, test_x)  # every task takes part in both, the chief alone in what follows
    if ctx.is_chief:
        results |= compare_with_export(ctx, logits, test_x)
    ctx.report(results)


def compare_with_export(ctx, logits, images):
    """Loads both forms of the export as a program without raydist would, and compares what they predict."""
    with tempfile.TemporaryDirectory() as folder:
        storage, path = pyarrow.fs.FileSystem.from_uri(f"{ctx.storage}/export")  # a folder, or s3://…
        pyarrow.fs.copy_files(path, folder, source_filesystem=storage)
        from_keras = tf.keras.models.load_model(Path(folder, "model.keras"))
        from_saved_model = tf.saved_model.load(str(Path(folder, "saved_model")))
        return {
            "keras_file_differs_by": np.abs(from_keras(images) - logits).max(),
            "saved_model_differs_by": np.abs(from_saved_model.serve(images) - logits).max(),
        }
