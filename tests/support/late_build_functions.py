"""Steps of the user's own whose first trace makes the variables of models, optimizers and metrics."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import flat
from tests.support.inside import forget_notes, notes_of

keras = tf.keras

BATCH = 8


def every_case(ctx: Any) -> dict[str, Any]:
    """Returns by model, optimizer and way of training the weights and a metric, or what was raised."""
    ways = {"function": _function, "eager": _eager, "loop": _loop, "in function": _in_function}
    ways |= {"train_steps": _train_steps}
    cases = [
        *(("sequential", "Adam", way) for way in ways),
        *((model, "Adam", "function") for model in _models(tf) if model != "sequential"),
        *(("sequential", optimizer, "function") for optimizer in _optimizers(tf) if optimizer != "Adam"),
        ("compiled", "Adam", "loop"),
    ]
    results: dict[str, Any] = {}
    for case in cases:
        model, optimizer, way = case
        try:
            results[" ".join(case)] = _trained(ctx, model, optimizer, ways[way])
        except Exception:
            results[" ".join(case)] = traceback.format_exc()[-3000:]
    return results


def _trained(ctx: Any, name: str, optimizer_name: str, way: Callable[..., None]) -> np.ndarray:
    keras.utils.set_random_seed(11)
    with ctx.strategy.scope():
        model, optimizer = _models(tf)[name](), _optimizers(tf)[optimizer_name]()
        error = keras.metrics.MeanAbsoluteError()
        if name == "compiled":
            model.compile(optimizer, "mse", metrics=["mae"])

    def step(batch: Any) -> Any:
        if name == "compiled":
            return model.train_step(batch)["loss"]
        x, y = batch
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            losses = tf.reduce_sum(tf.square(predicted - y), axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            if model.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
            scaled = optimizer.scale_loss(loss) if optimizer_name == "scaled" else loss
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        error.update_state(y, predicted)
        return loss

    way(ctx, tf, step)
    result = model.metrics[-1].result() if name == "compiled" else error.result()
    found = result["mae"] if isinstance(result, dict) else result
    return np.concatenate([*(np.ravel(weight) for weight in model.get_weights()), [float(found)]])


def _models(tf: Any) -> dict[str, Callable[[], Any]]:
    layers = tf.keras.layers

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        """Makes its layers, and weights beside them, when it is built."""

        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
            self.flat, self.dense = layers.Flatten(), layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            self.calls.assign_add(1.0)
            # The first use of the generator without a seed makes it.
            noise = 0.0 * keras.random.normal((1,))
            return self.dense(self.flat(x * self.scale)) + noise

    return {
        "sequential": lambda: keras.Sequential([layers.Flatten(), layers.Dense(4, "tanh"), layers.Dense(1)]),
        # Only the optimizer's variables are made in the step.
        "built": lambda: keras.Sequential([keras.Input((6, 4)), layers.Flatten(), layers.Dense(1)]),
        "compiled": lambda: keras.Sequential([layers.Flatten(), layers.Dense(1)]),
        "own": Own,
        "recurrent": lambda: keras.Sequential([layers.Bidirectional(layers.LSTM(3)), layers.Dense(1)]),
        "regularized": lambda: keras.Sequential(
            [
                layers.Flatten(),
                layers.Dropout(0.0, seed=3),
                layers.Dense(1, kernel_regularizer="l2", kernel_initializer="orthogonal"),
            ]
        ),
    }


def _optimizers(tf: Any) -> dict[str, Callable[[], Any]]:
    found = tf.keras.optimizers
    return {
        "Adam": lambda: found.Adam(0.01),
        "Nadam": lambda: found.Nadam(0.01),
        "Muon": lambda: found.Muon(0.01),
        "scaled": lambda: found.LossScaleOptimizer(found.SGD(0.01, momentum=0.9)),
    }


def _data(tf: Any) -> Any:
    x = np.random.default_rng(5).normal(size=(40, 6, 4)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=(1, 2))[:, None])).batch(BATCH)


def _function(ctx: Any, tf: Any, step: Callable[[Any], Any]) -> None:
    """As in the guide "Custom training with tf.distribute.Strategy"."""

    @tf.function
    def distributed_step(batch: Any) -> Any:
        return ctx.strategy.reduce("SUM", ctx.strategy.run(step, args=(batch,)), axis=None)

    for _ in range(2):
        for batch in ctx.strategy.experimental_distribute_dataset(_data(tf)):
            distributed_step(batch)


def _eager(ctx: Any, tf: Any, step: Callable[[Any], Any]) -> None:
    for batch in ctx.strategy.experimental_distribute_dataset(_data(tf)):
        ctx.strategy.run(step, args=(batch,))


def _loop(ctx: Any, tf: Any, step: Callable[[Any], Any]) -> None:
    """As in the guide "Distributed input", the loop over the data in a function, too."""

    @tf.function
    def epoch(data: Any) -> Any:
        total = 0.0
        for batch in data:
            total += ctx.strategy.reduce("SUM", ctx.strategy.run(step, args=(batch,)), axis=None)
        return total

    data = ctx.strategy.experimental_distribute_dataset(_data(tf))
    for _ in range(2):
        epoch(data)


def _in_function(ctx: Any, tf: Any, step: Callable[[Any], Any]) -> None:
    inner = tf.function(step)

    @tf.function
    def steps(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            ctx.strategy.run(inner, args=(next(iterator),))

    iterator = iter(ctx.strategy.experimental_distribute_dataset(_data(tf).repeat()))
    for _ in range(2):
        steps(iterator, 5)


def _train_steps(ctx: Any, tf: Any, step: Callable[[Any], Any]) -> None:
    ctx.train_steps(lambda batch: {"loss": step(batch)}, _data(tf).repeat(), num_steps=10, steps_per_call=2)


def losses_of_one_output(ctx: Any) -> dict[str, Any]:
    """Trains a model whose step has a loss for one of the outputs that `call` returns; with tf_keras."""
    from tests.programs.losses_of_outputs import Computed, given

    forget_notes(ctx)
    rng = np.random.default_rng(3)
    rows = {"x": rng.normal(size=(20, 4)).astype("float32"), "labels": rng.integers(0, 3, 20)}
    data = tf.data.Dataset.from_tensor_slices(rows).batch(8)
    with ctx.strategy.scope():
        model = Computed(is_built=True)
        model.compile("sgd", loss=given)
    history = ctx.fit(model, data, epochs=1)
    return {
        "shown": sorted(history.history),
        "evaluated": model.evaluate(data, verbose=0),
        "expected": float(np.mean(model(rows)["loss"])),
        "notes": notes_of(ctx),
    }


def unbuilt_inside(ctx: Any) -> dict[str, Any]:
    """Returns the weights of a model that holds unbuilt Sequentials, after a `fit` of the user's own."""
    layers = tf.keras.layers

    class Autoencoder(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([layers.GRU(3), layers.Dense(4, "tanh")])
            self.decoder = keras.Sequential([layers.Dense(4), layers.Reshape((2, 2))])

        def call(self, inputs: Any) -> Any:
            return self.decoder(self.encoder(inputs))

    x = np.random.default_rng(0).uniform(size=(32, 2, 2)).astype("float32")
    keras.utils.set_random_seed(5)
    with ctx.strategy.scope():
        model = Autoencoder()
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(x, x, epochs=2, batch_size=8, shuffle=False, verbose=0, validation_data=(x, x))
    return {"weights": flat(model)}
