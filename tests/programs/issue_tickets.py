"""The guide to the Functional API: several inputs, several outputs, weighted losses and sample weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_TAGS = 4
NUM_WORDS = 25
NUM_DEPARTMENTS = 3


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(27)
    rng = np.random.default_rng(27)
    x = {
        "title": rng.integers(NUM_WORDS, size=(77, 4)),
        "body": rng.integers(NUM_WORDS, size=(77, 7)),
        "tags": rng.integers(2, size=(77, NUM_TAGS)).astype("float32"),
    }
    y = {
        "priority": rng.random((77, 1), dtype="float32"),
        "department": keras.utils.to_categorical(rng.integers(NUM_DEPARTMENTS, size=77), NUM_DEPARTMENTS),
    }
    weights = {name: rng.random(77, dtype="float32") for name in y}
    with ctx.strategy.scope():
        title_input = keras.Input(shape=(None,), name="title", dtype="int32")
        body_input = keras.Input(shape=(None,), name="body", dtype="int32")
        tags_input = keras.Input(shape=(NUM_TAGS,), name="tags")
        title_features = layers.LSTM(4)(layers.Embedding(NUM_WORDS, 4)(title_input))
        body_features = layers.GRU(3)(layers.Embedding(NUM_WORDS, 4)(body_input))
        merged = layers.concatenate([title_features, body_features, tags_input])
        priority_pred = layers.Dense(1, name="priority", activation="sigmoid")(merged)
        department_pred = layers.Dense(NUM_DEPARTMENTS, name="department")(merged)
        model = keras.Model(
            inputs={"title": title_input, "body": body_input, "tags": tags_input},
            outputs={"priority": priority_pred, "department": department_pred},
        )
        model.compile(
            optimizer=keras.optimizers.RMSprop(1e-3, epsilon=1e-4),
            loss={
                "priority": keras.losses.BinaryCrossentropy(),
                "department": keras.losses.CategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"priority": 1.0, "department": 0.2},
        )
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).shuffle(77, seed=27).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
