"""A job whose steps take a while in its first attempt, so that something can happen to it meanwhile."""

from __future__ import annotations

from pathlib import Path

SLOW_JOB = """
import time

import numpy as np
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"epochs": 4, "pause_s": 0.05, "raise_at": -1})
def train(ctx: raydist.TrainContext):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160, seed=2).batch(16)

    class Pace(tf.keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            time.sleep(ctx.params["pause_s"] if ctx.attempt == 0 else 0.0)
            if self.steps == ctx.params["raise_at"] and not ctx.is_chief:
                raise ValueError("the user's own mistake")

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss, metrics=["accuracy"])
    ctx.fit(model, data, epochs=ctx.params["epochs"], callbacks=[Pace()])
    ctx.report({"norm": float(sum(np.abs(w).sum() for w in model.get_weights()))}, step=ctx.step)
"""


def write_slow_job(folder: Path) -> str:
    (folder / "code").mkdir()
    (folder / "code" / "slow.py").write_text(SLOW_JOB)
    return str(folder / "code" / "slow.py")
