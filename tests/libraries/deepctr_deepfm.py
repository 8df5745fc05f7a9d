"""DeepCTR: DeepFM on sparse and dense features, as its quick start has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from deepctr.feature_column import DenseFeat, SparseFeat, get_feature_names
from deepctr.models import DeepFM

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(7)
    rng = np.random.default_rng(7)
    columns = [SparseFeat(f"C{index}", vocabulary_size=10, embedding_dim=4) for index in range(3)]
    columns += [DenseFeat(f"I{index}", 1) for index in range(2)]
    values = {
        name: rng.integers(0, 10, 77) if name[0] == "C" else rng.random(77).astype("float32")
        for name in get_feature_names(columns)
    }
    target = rng.integers(0, 2, size=(77, 1))
    with ctx.strategy.scope():
        model = DeepFM(columns, columns, dnn_hidden_units=(8, 4), task="binary")
        model.compile("adam", "binary_crossentropy", metrics=["binary_crossentropy"])
    history = ctx.fit(
        model, values, target, batch_size=24, epochs=3, validation_split=0.2, callbacks=callbacks
    )
    return outcome(history, models=[model])
