"""TensorFlow Probability: the tutorial's regression whose model returns a distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tests.programs.outcome import Outcome, outcome

tfd = tfp.distributions


def negative_log_likelihood(y: Any, rv_y: Any) -> Any:
    return -rv_y.log_prob(y)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(6)
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, size=(75, 1)).astype("float32")
    y = (3 * x + rng.normal(size=x.shape) * 0.1).astype("float32")
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(2),
                tfp.layers.DistributionLambda(
                    lambda t: tfd.Normal(loc=t[..., :1], scale=1e-3 + tf.math.softplus(0.05 * t[..., 1:]))
                ),
            ]
        )
        model.compile(optimizer=tf.keras.optimizers.Adam(0.05, epsilon=1e-5), loss=negative_log_likelihood)
    history = ctx.fit(model, x, y, epochs=3, batch_size=32, callbacks=callbacks)
    return outcome(history, models=[model])
