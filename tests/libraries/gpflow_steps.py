"""GPflow: the same model in a loop of `ctx.train_steps`; each part of a batch estimates the loss."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.libraries.gpflow_svgp import GLOBAL_BATCH_SIZE, model_and_data
from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    with ctx.strategy.scope():
        model, data = model_and_data()
        optimizer = tf.keras.optimizers.Adam(0.01, epsilon=1e-5)
        optimizer.build(model.trainable_variables)
    ctx.restore(model=model, optimizer=optimizer)

    def step_fn(batch: Any) -> dict[str, Any]:
        loss = model.training_loss_closure(batch, compile=False)
        optimizer.minimize(loss, model.trainable_variables)
        return {"loss": loss()}

    ctx.train_steps(step_fn, data.batch(GLOBAL_BATCH_SIZE), num_steps=6)
    for callback in callbacks:
        callback.on_train_batch_end(6)
    return outcome({}, models=[model], optimizers=[optimizer])
