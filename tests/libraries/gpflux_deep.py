"""GPflux: the documented deep Gaussian process, whose inner layers draw samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from gpflux.architectures import Config, build_constant_input_dim_deep_gp

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(21)
    rng = np.random.default_rng(21)
    x = rng.uniform(-1, 1, size=(100, 1))
    y = np.sin(3 * x) + 0.1 * rng.normal(size=x.shape)
    config = Config(
        num_inducing=10, inner_layer_qsqrt_factor=1e-5, likelihood_noise_variance=1e-2, whiten=True
    )
    with ctx.strategy.scope():
        model = build_constant_input_dim_deep_gp(x, num_layers=2, config=config).as_training_model()
        model.compile(tf.optimizers.Adam(0.01))
    history = ctx.fit(model, {"inputs": x, "targets": y}, batch_size=20, epochs=2, callbacks=callbacks)
    return outcome(history, models=[model])
