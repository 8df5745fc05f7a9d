"""A loop of `ctx.train_steps` over batches of 32, which 3 replicas do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

GLOBAL_BATCH_SIZE = 32


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(29)
    rng = np.random.default_rng(29)
    x = rng.integers(20, size=(96, 5)).astype("int32")
    y = (x.sum(axis=1) % 3).astype("int64")
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(20, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
        optimizer = keras.optimizers.Adam(learning_rate=0.01, epsilon=1e-5)
        optimizer.build(model.trainable_variables)
    ctx.restore(model=model, optimizer=optimizer)

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": tf.reduce_mean(losses)}

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)
    ctx.train_steps(step_fn, data, num_steps=5, steps_per_call=2)
    for callback in callbacks:
        callback.on_train_batch_end(5)
    ctx.train_steps(step_fn, data, num_steps=4, steps_per_call=2)
    # What train_steps returns is the mean over its last call, whose size depends on checkpoints.
    return outcome({}, models=[model], optimizers=[optimizer])
