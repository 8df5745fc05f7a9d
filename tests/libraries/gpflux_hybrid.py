"""GPflux: the documented hybrid of Dense layers and a Gaussian process, whose loss is of the distribution."""

from __future__ import annotations

from typing import Any

import gpflow
import gpflux
import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

GLOBAL_BATCH_SIZE = 20


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(21)
    rng = np.random.default_rng(21)
    x = rng.uniform(-1, 1, size=(100, 1))
    y = np.sin(3 * x) + 0.1 * rng.normal(size=x.shape)
    with ctx.strategy.scope():
        gp_layer = gpflux.layers.GPLayer(
            gpflow.kernels.SquaredExponential(),
            gpflow.inducing_variables.InducingPoints(np.linspace(-1, 1, 10)[:, None]),
            num_data=len(x),
            num_latent_gps=1,
            mean_function=gpflow.mean_functions.Zero(),
        )
        likelihood = gpflow.likelihoods.Gaussian(0.001)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(10, activation="relu", dtype="float64"),
                tf.keras.layers.Dense(1, activation="linear", dtype="float64"),
                gp_layer,
            ]
        )
        model.compile(loss=gpflux.losses.LikelihoodLoss(likelihood), optimizer="adam")
    history = ctx.fit(model, x, y, batch_size=GLOBAL_BATCH_SIZE, epochs=2, callbacks=callbacks)
    return outcome(history, models=[model])
