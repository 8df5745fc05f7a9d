"""KerasTuner: a search in each worker, which all make the same trials under one strategy."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import keras_tuner
import numpy as np

from tests.programs.outcome import Outcome, outcome


def build_model(hp: Any) -> Any:
    model = keras.Sequential(
        [keras.layers.Dense(hp.Choice("units", [4, 8]), activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.SGD(hp.Float("rate", 1e-2, 1e-1, sampling="log")), loss="mse")
    return model


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(4)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            build_model,
            objective="val_loss",
            max_trials=3,
            seed=4,
            directory=folder,
            distribution_strategy=ctx.strategy,
        )
        tuner.search(
            x[:32],
            y[:32],
            epochs=2,
            batch_size=16,
            validation_data=(x[32:], y[32:]),
            callbacks=list(callbacks),
        )
        [best] = tuner.get_best_hyperparameters()
        scores = [trial.score for trial in tuner.oracle.get_best_trials(3)]
    with ctx.strategy.scope():
        model = build_model(best)
        model.build((None, 3))
    return outcome({"score": scores, "units": [best["units"]], "rate": [best["rate"]]}, models=[model])
