"""A model whose `fit` and `evaluate` prepare the data first, as each task of KerasHub does."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import raydist
from tests.programs.outcome import Outcome, outcome

keras = tf.keras


class Prepared(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.hidden(inputs))

    @staticmethod
    def prepared(data: Any) -> Any:
        # Neither a shape nor a type is the one that came in.
        def prepare(x: Any, y: Any) -> Any:
            return tf.one_hot(x, 6), tf.cast(y, tf.float32)[:, tf.newaxis]

        return data.map(prepare)

    def fit(self, x: Any = None, y: Any = None, validation_data: Any = None, **more: Any) -> Any:
        if validation_data is not None:
            validation_data = self.prepared(validation_data)
        return super().fit(self.prepared(x), y, validation_data=validation_data, **more)

    def evaluate(self, x: Any = None, y: Any = None, **more: Any) -> Any:
        is_raw = isinstance(x, tf.data.Dataset) and x.element_spec[0].dtype == tf.int64
        return super().evaluate(self.prepared(x) if is_raw else x, y, **more)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(28)
    x, y = rng.integers(0, 6, size=45), rng.integers(0, 4, size=45)
    values: dict[str, Any] = {}
    models = []
    batches = raydist.data.from_arrays(x, y).batches(global_batch_size=16, seed=3)
    ways: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
        # ctx.fit shuffles arrays by the number of the fit, which depends on the programs before.
        (x, y, {"batch_size": 16, "validation_split": 0.2, "shuffle": False}),
        (batches, None, {"validation_data": (x, y)}),
        (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(45, seed=3).batch(16), None, {}),
    )
    for number, (data, labels, options) in enumerate(ways):
        keras.utils.set_random_seed(28)
        with ctx.strategy.scope():
            model = Prepared()
            model.compile(keras.optimizers.Adam(0.05, epsilon=1e-5), "mse")
        history = ctx.fit(model, data, labels, epochs=2, callbacks=callbacks, **options)
        values |= {f"{number} {name}": one for name, one in history.history.items()}
        values[f"{number} evaluated"] = [ctx.evaluate(model, (x, y))["loss"]]
        models.append(model)
    return outcome(values, models=models)
