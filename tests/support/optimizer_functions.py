"""Trains a small model with every optimizer of a Keras."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import descend, flat, refusal

keras = tf.keras

# Those that wrap others, and are made of them.
_WRAPPERS = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")


def train_with_each(ctx: Any) -> dict[str, Any]:
    """Returns by optimizer the weights and the loss scale after `fit`, or what it raises."""
    results: dict[str, Any] = {}
    for name, make in _optimizers_of(tf.keras).items():
        try:
            results[name] = _trained(ctx, make, has_infinity=name.endswith("skipping"))
        except Exception:
            results[name] = traceback.format_exc()
    return results


def _trained(ctx: Any, make: Callable[[], Any], *, has_infinity: bool) -> np.ndarray:
    keras.utils.set_random_seed(11)
    rng = np.random.default_rng(3)
    x = rng.integers(0, 20, size=(45, 3))
    y = rng.normal(size=(45, 1)).astype("float32")
    if has_infinity:
        y[13] = np.inf
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(20, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = make()
        model.compile(optimizer=optimizer, loss="mse")
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)  # the last global batch is uneven
    scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", 1.0))
    scale = np.log2(tf.convert_to_tensor(scale))
    return np.concatenate([*(np.ravel(weight) for weight in model.get_weights()), [scale]])


def _optimizers_of(keras: Any) -> dict[str, Callable[[], Any]]:
    """Returns what makes each optimizer of a Keras, and those of options that update in another way."""
    found = keras.optimizers
    scaled = keras.mixed_precision.LossScaleOptimizer
    makers = {
        **_of_module(found),
        "AdamW-weight decay": lambda: found.AdamW(0.02, weight_decay=0.1),
        "SGD-momentum": lambda: found.SGD(0.02, momentum=0.9, nesterov=True),
        "RMSprop-centered": lambda: found.RMSprop(0.02, momentum=0.9, centered=True),
        "Adam-amsgrad": lambda: found.Adam(0.02, amsgrad=True),
        "Adam-clipped": lambda: found.Adam(0.02, global_clipnorm=0.5),
        "Adam-ema": lambda: found.Adam(0.02, use_ema=True),
        "LossScaleOptimizer": lambda: scaled(found.Adam(0.02)),
        "LossScaleOptimizer-Nadam": lambda: scaled(found.Nadam(0.02)),
        # Doubles the scale after the five steps between two that it skips, each of which halves it.
        "LossScaleOptimizer-skipping": lambda: scaled(found.SGD(0.02), dynamic_growth_steps=5),
    }
    if hasattr(found, "MultiOptimizer"):
        by_path = {".*dense/.*": found.SGD(0.02)}
        makers["MultiOptimizer"] = lambda: found.MultiOptimizer(found.OptimizerMap(found.Adam(0.02), by_path))
    if hasattr(found, "Muon"):
        makers["Muon-weight decay"] = lambda: found.Muon(0.02, weight_decay=0.1, adam_weight_decay=0.1)
    if hasattr(found, "experimental"):  # tf_keras; what Keras 3 has of that name only raises
        makers |= {f"legacy.{name}": make for name, make in _of_module(found.legacy).items()}
    return makers


def _of_module(module: Any) -> dict[str, Callable[[], Any]]:
    return {
        name: functools.partial(kind, learning_rate=0.02)
        for name, kind in sorted(vars(module).items())
        if isinstance(kind, type) and issubclass(kind, module.Optimizer) and name not in _WRAPPERS
    }


def assigning_when_built(ctx: Any) -> dict[str, Any]:
    """Returns the weights that ScheduleFreeAdamW leaves, whose `build` assigns, by who has built it when."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def stacked() -> Any:
        layers = keras.layers
        return keras.Sequential([layers.Input((3,)), layers.Dense(4), layers.Dense(1)])

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.second(self.first(inputs))

    def trained(make: Any, way: str) -> np.ndarray:
        keras.utils.set_random_seed(5)
        with ctx.strategy.scope() if way in ("loop", "in scope") else contextlib.nullcontext():
            model = make()
            model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
        if way == "built":
            model.optimizer.build(model.trainable_variables)
        if way != "loop":
            model.fit(data, epochs=1, verbose=0)
            return flat(model)

        def step(batch: Any) -> dict[str, Any]:
            inputs, labels = batch
            with tf.GradientTape() as tape:
                errors = (model(inputs, training=True) - labels) ** 2
                loss = tf.nn.compute_average_loss(tf.reduce_mean(errors, axis=-1), global_batch_size=8)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return {"loss": loss}

        ctx.train_steps(step, data, num_steps=3)
        return flat(model)

    ways = {"built": stacked, "outside": stacked, "in scope": stacked, "loop": stacked}
    found = {way: trained(make, way) for way, make in ways.items()}
    return {**found, "own outside": trained(Own, "outside"), "own in scope": trained(Own, "in scope")}


def first_step_outside(ctx: Any) -> dict[str, Any]:
    """Returns what steps outside of every scope leave, by who has built the model and how the steps ran."""
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def trained(*, is_built: bool, is_compiled: bool, is_of_scope: bool = True) -> np.ndarray:
        keras.utils.set_random_seed(5)
        with ctx.strategy.scope() if is_of_scope else contextlib.nullcontext():
            layers = [keras.layers.Input((3,))] if is_built else []
            model = keras.Sequential([*layers, keras.layers.Dense(2)])
            optimizer = keras.optimizers.Adam(0.1, epsilon=1e-4)

        def step(inputs: Any) -> None:
            descend(model, optimizer, lambda: tf.reduce_mean(model(inputs) ** 2))

        step = tf.function(step) if is_compiled else step
        for _ in range(3):
            step(x)
        state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        return np.concatenate([np.ravel(one) for one in (*model.get_weights(), *state)])

    cases = {
        f"{built}, {compiled}": (built, compiled) for built in (True, False) for compiled in (True, False)
    }
    found = {name: trained(is_built=case[0], is_compiled=case[1]) for name, case in cases.items()}
    return {**found, "plain": trained(is_built=True, is_compiled=True, is_of_scope=False)}


def made_outside(ctx: Any) -> dict[str, Any]:
    """Returns what optimizers train that were made in the scope, and outside of it; and what is refused."""
    x, y = np.random.default_rng(0).normal(size=(24, 3)).astype("float32"), np.ones([24, 1], "float32")

    class Mine(keras.optimizers.SGD):  # type: ignore[misc,name-defined]
        def __init__(self, kept: int) -> None:  # get_config does not have it
            super().__init__(0.1)
            self.kept = kept

    def fitted(make: Any, *, is_outside: bool) -> tuple[np.ndarray, Any]:
        keras.utils.set_random_seed(5)
        with contextlib.nullcontext() if is_outside else ctx.strategy.scope():
            optimizer = make()
        with ctx.strategy.scope():
            model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        assert model.optimizer is optimizer
        optimizer.learning_rate = 0.05
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return flat(model), int(optimizer.iterations)

    makers = {
        "Adam": lambda: keras.optimizers.Adam(0.1),
        "scaled": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        for is_outside in (False, True):
            found[f"{name}, {is_outside}"], found[f"{name}, {is_outside}, steps"] = fitted(
                make, is_outside=is_outside
            )

    def built() -> Any:
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([keras.Variable([1.0])] if hasattr(keras, "Variable") else [tf.Variable([1.0])])
        return optimizer

    for name, make in {"built": built, "own": lambda: Mine(3)}.items():
        found[name] = refusal(fitted, make, is_outside=True)
    return found
