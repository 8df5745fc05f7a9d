"""GPflow: natural gradients for the variational distribution, and Adam for the rest, in `ctx.train_steps`."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf

from tests.libraries.gpflow_svgp import GLOBAL_BATCH_SIZE, model_and_data
from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    with ctx.strategy.scope():
        model, data = model_and_data()
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
        optimizer = tf.keras.optimizers.Adam(0.01, epsilon=1e-5)
        optimizer.build(model.trainable_variables)
    natural = gpflow.optimizers.NaturalGradient(gamma=0.1)

    def step_fn(batch: Any) -> dict[str, Any]:
        loss = model.training_loss_closure(batch, compile=False)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        optimizer.minimize(loss, model.trainable_variables)
        return {"loss": loss()}

    batches = data.batch(GLOBAL_BATCH_SIZE)
    losses = [ctx.train_steps(step_fn, batches, num_steps=6)["loss"] for _ in range(2)]
    return outcome({"loss": losses}, models=[model], optimizers=[optimizer])
