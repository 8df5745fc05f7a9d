"""GPflow: the documented loop of minibatches, which trains a sparse variational Gaussian process."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

GLOBAL_BATCH_SIZE = 20


def model_and_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(21)
    x = rng.uniform(-1, 1, size=(100, 1))
    y = np.sin(3 * x) + 0.1 * rng.normal(size=x.shape)
    model = gpflow.models.SVGP(
        gpflow.kernels.Matern12(), gpflow.likelihoods.Gaussian(), x[:8].copy(), num_data=len(x)
    )
    return model, tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(100, seed=21)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    with ctx.strategy.scope():
        model, data = model_and_data()
        optimizer = tf.keras.optimizers.Adam(0.01, epsilon=1e-5)
    train_loss = model.training_loss_closure(iter(data.batch(GLOBAL_BATCH_SIZE)), compile=True)

    @tf.function
    def optimization_step() -> None:
        optimizer.minimize(train_loss, model.trainable_variables)

    losses = []
    for step in range(8):
        optimization_step()
        for callback in callbacks:
            callback.on_train_batch_end(step)
        losses.append(float(train_loss()))
    return outcome({"loss": losses}, models=[model], optimizers=[optimizer])
