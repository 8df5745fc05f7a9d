"""Structured data: columns of a table in a dict, each with a layer adapted to it; a regression of arrays."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

BREEDS = ["tabby", "siamese", "persian"]


def table(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(17)
    features = {
        "Type": rng.choice(["Cat", "Dog"], (count, 1)),
        "Breed": rng.choice(BREEDS, (count, 1)),
        "Age": rng.integers(1, 6, (count, 1)),
        "Fee": rng.normal(20.0, 5.0, (count, 1)).astype("float32"),
    }
    return features, rng.integers(0, 2, count)


def classified(ctx: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any]]:
    features, target = table(64)
    rows = tf.data.Dataset.from_tensor_slices((features, target))
    train_ds = rows.take(48).shuffle(48, seed=17).batch(16).prefetch(16)
    val_ds = rows.skip(48).batch(16)
    normalization = layers.Normalization(axis=None)
    normalization.adapt(train_ds.map(lambda x, y: x["Fee"]))
    encoders: dict[str, Any] = {}
    for name, make in (
        ("Type", layers.StringLookup),
        ("Breed", layers.StringLookup),
        ("Age", layers.IntegerLookup),
    ):
        index = make(max_tokens=5)
        index.adapt(train_ds.map(lambda x, y, name=name: x[name]))
        encoders[name] = (
            index,
            layers.CategoryEncoding(num_tokens=index.vocabulary_size(), output_mode="multi_hot"),
        )
    with ctx.strategy.scope():
        fee = keras.Input(shape=(1,), name="Fee")
        inputs, encoded = {"Fee": fee}, [normalization(fee)]
        for name, (index, encoder) in encoders.items():
            inputs[name] = keras.Input(shape=(1,), name=name, dtype="int64" if name == "Age" else "string")
            encoded.append(encoder(index(inputs[name])))
        x = layers.Dense(8, activation="relu")(layers.concatenate(encoded))
        model = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.0)(x)))
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(train_ds, epochs=2, validation_data=val_ds, verbose=0, callbacks=[*callbacks])
    values: dict[str, Any] = dict(history.history)
    values["evaluated"] = list(model.evaluate(val_ds, return_dict=True, verbose=0).values())
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "pets.keras"))
        with ctx.strategy.scope():
            reloaded = keras.models.load_model(Path(folder, "pets.keras"))
    sample = {"Type": "Cat", "Age": 3, "Breed": "tabby", "Fee": 100.0}
    one = {name: tf.convert_to_tensor([[value]]) for name, value in sample.items()}
    values["one"] = reloaded.predict({**one, "Age": tf.constant([[3]], tf.int64)}, verbose=0).ravel()
    values["all"] = reloaded.predict(val_ds, verbose=0).ravel()
    return values, [model]


def regression(ctx: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(18)
    features = rng.normal(3.0, 2.0, (80, 5)).astype("float32")
    labels = features.sum(axis=1) + rng.normal(size=80).astype("float32")
    values: dict[str, Any] = {}
    models = []
    for is_outside in (False, True):
        keras.utils.set_random_seed(18)
        if is_outside:
            normalizer = layers.Normalization(axis=-1)
            normalizer.adapt(np.array(features[:64]))
        with ctx.strategy.scope():
            if not is_outside:
                normalizer = layers.Normalization(axis=-1)
                normalizer.adapt(np.array(features[:64]))
            model = keras.Sequential([normalizer, layers.Dense(6, activation="relu"), layers.Dense(1)])
            model.compile(optimizer=keras.optimizers.Adam(0.05, epsilon=1e-5), loss="mean_absolute_error")
        values[f"{is_outside} before"] = model.predict(features[:10], verbose=0).ravel()
        history = model.fit(
            features[:64], labels[:64], validation_split=0.2, verbose=0, epochs=2, callbacks=[*callbacks]
        )
        values |= {f"{is_outside} {name}": one for name, one in history.history.items()}
        values[f"{is_outside} after"] = [model.evaluate(features[64:], labels[64:], verbose=0)]
        values[f"{is_outside} predicted"] = model.predict(features[64:], verbose=0).flatten()
        models.append(model)
    return values, models


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    values: dict[str, Any] = {}
    models = []
    for part in (classified, regression):
        keras.utils.set_random_seed(17)
        shown, own = part(ctx, callbacks)
        values |= {f"{part.__name__} {name}": one for name, one in shown.items()}
        models += own
    return outcome(values, models=models)
