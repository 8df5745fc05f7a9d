"""Wide & deep on structured data, with preprocessing layers that are adapted and part of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

WORDS = ("quiet", "barks", "friendly", "old", "young", "shy", "hungry")


def pets(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(13)
    features = {
        "age": rng.gamma(2.0, 3.0, size=(count, 1)).astype("float32"),
        "breed": rng.choice(["collie", "poodle", "tabby", "mixed"], size=(count, 1)).astype(object),
        "description": np.array([[" ".join(rng.choice(WORDS, size=4))] for _ in range(count)], dtype=object),
    }
    return features, (features["age"][:, 0] > 5).astype("float32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(13)
    features, labels = pets(85)
    with ctx.strategy.scope():
        inputs = {
            "age": keras.Input((1,), name="age", dtype="float32"),
            "breed": keras.Input((1,), name="breed", dtype="string"),
            "description": keras.Input((1,), name="description", dtype="string"),
        }
        normalization = layers.Normalization()
        normalization.adapt(features["age"])
        lookup = layers.StringLookup(output_mode="int")
        lookup.adapt(tf.constant(features["breed"].astype(str)))
        one_hot = layers.StringLookup(output_mode="one_hot", vocabulary=lookup.get_vocabulary()[1:])
        vectorization = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
        vectorization.adapt(tf.constant(features["description"][:, 0].astype(str)))
        breed = layers.Flatten()(layers.Embedding(lookup.vocabulary_size(), 3)(lookup(inputs["breed"])))
        tokens = vectorization(inputs["description"])
        description = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(tokens))
        age = normalization(inputs["age"])
        wide = layers.Concatenate()([age, one_hot(inputs["breed"])])
        deep = layers.Concatenate()([age, breed, description])
        deep = layers.Dense(8, activation="relu")(deep)
        merged = layers.Concatenate()([wide, deep])
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(merged))
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC(num_thresholds=20, name="auc")],
        )
    texts = {name: tf.constant(x.astype(str) if x.dtype == object else x) for name, x in features.items()}
    data = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(85, seed=13).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
