"""SciKeras: a classifier of scikit-learn's API, whose `fit` makes, compiles and trains the model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from scikeras.wrappers import KerasClassifier

from tests.programs.outcome import Outcome, outcome


def build_model(meta: dict[str, Any], hidden: int) -> Any:
    return keras.Sequential(
        [
            keras.Input((meta["n_features_in_"],)),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(meta["n_classes_"], activation="softmax"),
        ]
    )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(18)
    x = rng.normal(size=(50, 5)).astype("float32")
    y = np.array(["low", "middle", "high"])[np.digitize(x.sum(axis=1), (-1, 1))]
    with ctx.strategy.scope():
        classifier = KerasClassifier(
            build_model,
            loss="sparse_categorical_crossentropy",
            optimizer=keras.optimizers.Adam,
            optimizer__learning_rate=0.01,
            optimizer__epsilon=1e-5,
            metrics=["accuracy"],
            model__hidden=6,
            epochs=3,
            batch_size=16,
            random_state=18,
            verbose=0,
            callbacks=list(callbacks),
        )
        classifier.fit(x, y)
    values = {**classifier.history_, "score": [classifier.score(x, y)]}
    return outcome(values, models=[classifier.model_])
