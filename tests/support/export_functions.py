"""Train functions for tests of exports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inside import notes_of

keras = tf.keras

ROWS = 12


def values() -> dict[str, np.ndarray]:
    """Returns a batch of three inputs, each of a type of its own."""
    return {
        "user": np.arange(ROWS, dtype="int32").reshape(ROWS, 1) % 5,
        "item": np.arange(ROWS, dtype="int64").reshape(ROWS, 1) % 3,
        "price": np.linspace(-1, 1, 2 * ROWS, dtype="float32").reshape(ROWS, 2),
    }


def several_inputs(ctx: Any, *, kinds: list[str]) -> dict[str, Any]:
    """Trains a model of each kind, and keeps its export beside the others."""
    for kind in kinds:
        with ctx.strategy.scope():
            model = _model(tf.keras, kind)
            model.compile("sgd", "mse", **({"loss_weights": None} if kind == "two outputs" else {}))
        x: Any = values()
        if kind in ("one", "sequential", "unnamed") or kind.startswith("mixed"):
            x = x["price"]
        elif kind == "list":
            x = tuple(x.values())
        elif kind == "renamed":
            x = {"u": x["user"], "i": x["item"], "p": x["price"]}
        label = np.ones((ROWS, 1), "float32")
        y: Any = {"first": label, "second": label} if kind == "two outputs" else label
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)
        ctx.fit(model, data, epochs=1)
        if ctx.is_chief:
            shutil.copytree(Path(ctx.storage) / "export", Path(ctx.storage) / kind)
    return {"notes": notes_of(ctx)}


def _model(keras: Any, kind: str) -> Any:
    layers = keras.layers
    if kind == "subclassed":

        class Priced(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.dense = layers.Embedding(5, 1), layers.Dense(1)

            def call(self, batch: Any) -> Any:
                return {"click": self.dense(batch["price"]) + self.table(batch["user"])[:, 0, :]}

        return Priced()
    if kind == "unnamed":
        return keras.Sequential([layers.Dense(1)])
    user = keras.Input((1,), name="user", dtype="int32")
    item = keras.Input((1,), name="item", dtype="int64")
    price = keras.Input((2,), name="price")
    if kind.startswith("mixed"):
        hidden = layers.Dense(64, "relu", dtype=kind)(layers.Dense(64, "relu", dtype=kind)(price))
        return keras.Model(price, layers.Dense(1, dtype="float32")(hidden))
    if kind == "sequential":
        return keras.Sequential([price, layers.Dense(1)])
    if kind == "one":
        return keras.Model(price, layers.Dense(1)(price))
    rows = [layers.Flatten()(layers.Embedding(5, 2)(one)) for one in (user, item)]
    hidden = layers.Concatenate()([*rows, price])
    first = layers.Dense(1, name="first")(hidden)
    if kind == "list":
        return keras.Model([user, item, price], first)
    if kind == "renamed":
        return keras.Model({"u": user, "i": item, "p": price}, first)
    inputs = {"user": user, "item": item, "price": price}
    if kind == "two outputs":
        return keras.Model(inputs, {"first": first, "second": layers.Dense(1, name="second")(hidden)})
    if kind == "no config":

        class Unknown(layers.Layer):
            def __init__(self, factor: float) -> None:
                super().__init__()
                self.factor = factor

            def call(self, inputs: Any) -> Any:
                return inputs * self.factor

            def get_config(self) -> Any:
                raise NotImplementedError("no config")

        return keras.Model(inputs, Unknown(2.0)(first))
    return keras.Model(inputs, first)


def of_lists(ctx: Any) -> dict[str, Any]:
    """Trains a subclassed model on ragged rows of four values each, as `list` columns of Ray Data are."""

    class Summing(keras.Model):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.dense = keras.layers.Dense(1)

        def call(self, rows: Any) -> Any:
            rows = rows.to_tensor() if isinstance(rows, tf.RaggedTensor) else rows
            return self.dense(tf.reshape(rows, [-1, 4]))

    x = np.ones((32, 4), np.float32)
    types = (tf.TensorSpec([None]), tf.TensorSpec([1]))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, x[:, :1], strict=True), output_signature=types)
    with ctx.strategy.scope():
        model = Summing()
        model.compile("sgd", "mse")
    ctx.fit(model, rows.ragged_batch(16).map(lambda x, y: (x, tf.ones([16, 1]))), epochs=1, verbose=0)
    return {"notes": notes_of(ctx)}
