"""What calls of raydist and Keras leave of generators, variables, tables and Python objects."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from raydist.training.checks import rehearsal
from raydist.training.user_code import side_effects
from tests.support.in_tasks import descend, flat

keras = tf.keras


def digests(model: Any) -> dict[str, str]:
    """Returns a digest of each generator of this process, and of those of a model's layers."""
    from keras.src.backend.common import global_state

    rng, seed = context.context()._rng, context.global_seed()
    generator = stateful_random_ops.global_generator
    keras = global_state.get_global_attribute("global_seed_generator")
    seeds = [part for part in model._flatten_layers() if not hasattr(part, "train_step")]
    found: dict[str, Any] = {
        "random": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "tensorflow": [seed, rng.getstate()],
        "tf.random.Generator": None if generator is None else generator.state.numpy().tolist(),
        "keras": None if keras is None else np.array(keras.state).tolist(),
        "keras's seed": global_state.get_global_attribute("global_random_seed"),
        "layers": [state for part in seeds for state in _seeds_of(part)],
    }
    if tf.keras.Model.__module__.startswith("tf_keras"):
        from tf_keras.src import backend

        own = getattr(backend._SEED_GENERATOR, "generator", None)
        found["tf_keras"] = None if own is None else own.getstate()
    return {name: hashlib.sha256(repr(value).encode()).hexdigest()[:12] for name, value in found.items()}


def _seeds_of(layer: Any) -> list[Any]:
    return [np.array(one.state).tolist() for one in getattr(layer, "_seed_generators", ())]


def around_each_call(ctx: Any) -> dict[str, Any]:
    """Calls all that is public, one after another, by plain Keras and by raydist.

    Returns of each way and call the digests of all generators after it, and all variables.
    """
    found = {}
    tables: dict[str, Any] = {}

    class Drawing(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """Draws numbers and counts its calls in a table, and changes no output."""

        def __init__(self) -> None:
            super().__init__()
            self.dropout = keras.layers.Dropout(0.5)
            self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                zero = tf.constant(0, tf.int64)
                self.counts.insert(zero, self.counts.lookup(zero) + 1)
            return inputs + 0.0 * self.dropout(inputs, training=training)

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.drawing, self.first, self.second = Drawing(), keras.layers.Dense(4), keras.layers.Dense(1)

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.second(self.first(self.drawing(inputs, training=training)))

    def own_loss(labels: Any, outputs: Any) -> Any:
        return tf.reduce_mean((outputs - labels) ** 2)

    for way in ("plain", "scope", "ctx"):
        keras.utils.set_random_seed(5)
        with contextlib.nullcontext() if way == "plain" else ctx.strategy.scope():
            dense = keras.layers.Dense
            stacked, own = keras.Sequential([keras.layers.Input((5,)), dense(4), dense(1)]), Own()
            stacked.compile("adam", "mse", metrics=["mae"])
            own.compile("adam", own_loss, metrics=["mae"])
        calls = {
            **{
                f"stacked {name}": (stacked, call) for name, call in _calls(ctx, stacked, way, most=3).items()
            },
            **{f"own {name}": (own, call) for name, call in _calls(ctx, own, way).items()},
            **{name: (stacked, call) for name, call in _calls_of_context(ctx, stacked).items()},
        }
        for name, (model, call) in calls.items():
            if way == "ctx" or name.startswith(("stacked", "own")):
                call()
            for generator, digest in digests(model).items():
                found[f"{way}/{name}/{generator}"] = digest
            weights = [
                one for one in (*model.weights, *_optimizer_variables(model)) if "seed" not in one.name
            ]
            flat = [np.ravel(np.array(one)).astype("float64") for one in weights]
            found[f"{way}/{name}/variables"] = np.concatenate(flat)
        tables[way] = int(own.drawing.counts.lookup(tf.constant(0, tf.int64)))
    return {**found, "tables": tables}


def _calls(ctx: Any, model: Any, way: str, most: int | None = None) -> dict[str, Callable[[], Any]]:
    """Returns what Keras has, by name, or the first ones: of the model itself, or of the context."""
    x, y = _rows(24)
    fit, evaluate, predict = model.fit, model.evaluate, model.predict
    labelled: Any = (x, y)
    if way == "ctx":
        fit, evaluate, predict = (
            functools.partial(one, model) for one in (ctx.fit, ctx.evaluate, ctx.predict)
        )
        labelled = (labelled,)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    calls = {
        "fit": lambda: fit(data(), epochs=1, validation_data=data(), verbose=0),
        "evaluate": lambda: evaluate(data(), verbose=0),
        "predict": lambda: predict(x),
        "fit again": lambda: fit(data(), epochs=2, verbose=0),
        "fit of arrays": lambda: fit(x, y, epochs=1, batch_size=8, shuffle=False, verbose=0),
        "evaluate arrays": lambda: evaluate(*labelled, verbose=0),
        "train_on_batch": lambda: model.train_on_batch(x[:8], y[:8]),
        "test_on_batch": lambda: model.test_on_batch(x[:8], y[:8]),
        "predict_on_batch": lambda: model.predict_on_batch(x[:8]),
    }
    return dict([*calls.items()][:most])


def _calls_of_context(ctx: Any, model: Any) -> dict[str, Callable[[], Any]]:
    """Returns what plain Keras has no counterpart of, by name."""
    return {
        "report": lambda: ctx.report({"value": 1.0}),
        "note": lambda: ctx.note("a note of the test"),
        "save": lambda: ctx.save(step=1000, model=model, optimizer=model.optimizer),
        "train_steps": lambda: _loop(ctx, model),
        "restore": lambda: ctx.restore(model=model, optimizer=model.optimizer),
    }


def _optimizer_variables(model: Any) -> list[Any]:
    found = model.optimizer.variables
    return list(found() if callable(found) else found)


def _loop(ctx: Any, model: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices(_rows(24)).batch(8)

    def step(batch: Any) -> dict[str, Any]:
        inputs, labels = batch
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean((model(inputs, training=True) - labels) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    ctx.train_steps(step, data, num_steps=2)


def shuffles_between_fits(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Two fits with a seeded `random.shuffle` before each, then another model; by plain Keras and by ctx.fit.

    Args:
      kind: What the fits are given: arrays, or a dataset.
    """
    found = {}
    x, y = _rows(32)
    for way in ("plain", "ctx"):
        keras.utils.set_random_seed(1)

        def made(way: str = way) -> Any:
            with contextlib.nullcontext() if way == "plain" else ctx.strategy.scope():
                layers = [keras.layers.Dense(3), keras.layers.Dense(1)]
                model = keras.Sequential([keras.layers.Input((5,)), *layers])
                model.compile("sgd", "mse")
            return model

        model, orders = made(), []
        fit = model.fit if way == "plain" else functools.partial(ctx.fit, model)
        for _ in range(2):
            order = list(range(32))
            random.shuffle(order)
            orders.append(order)
            if kind == "arrays":
                fit(x[order], y[order], epochs=1, verbose=0, shuffle=False)
            else:
                fit(tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(8), epochs=1, verbose=0)
        found[f"{way} orders"] = np.array(orders)
        found[f"{way} second model"] = flat(made())
    return found


def counting_layers(ctx: Any) -> dict[str, Any]:
    """Fits of models that count in variables how often they are called, by plain Keras and in a scope.

    Returns the count, the loss, and the extra metric of each.
    """
    is_keras_3 = keras.Model.__module__.startswith("keras")
    aggregation = "only_first_replica" if is_keras_3 else tf.VariableAggregation.ONLY_FIRST_REPLICA

    class WarmUp(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.count = self.add_weight(
                shape=(), initializer="zeros", trainable=False, name="count", aggregation=aggregation
            )

        def call(self, inputs: Any) -> Any:
            self.count.assign_add(1.0)
            return inputs * tf.minimum(1.0, 0.1 * self.count)

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.warm_up, self.dense = WarmUp(), keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs: Any) -> Any:
            return self.dense(self.warm_up(inputs))

    def stacked() -> Any:
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.layers.Input((5,)), WarmUp(), dense])

    def measured() -> Any:
        inputs = keras.layers.Input((5,))
        hidden = WarmUp()(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(hidden * 2.0))
        model.add_metric(tf.reduce_mean(hidden), name="mean")
        return model

    kinds: dict[str, Callable[[], Any]] = {"stacked": stacked, "own": Own}
    if not is_keras_3:  # which has no add_metric
        kinds["measured"] = measured
    data, found = tf.data.Dataset.from_tensor_slices(_rows(32)).batch(8), {}
    for kind, make in kinds.items():
        for is_eager in (False, True) if kind == "own" else (False,):
            for way in ("plain", "fit" if kind in ("stacked", "measured") else "ctx"):
                with contextlib.nullcontext() if way == "plain" else ctx.strategy.scope():
                    model = make()
                    model.compile("sgd", "mse", run_eagerly=is_eager)
                if way == "ctx":
                    history = ctx.fit(model, data, epochs=1, verbose=0).history
                else:
                    history = model.fit(data, epochs=1, verbose=0).history
                [count] = [float(one.numpy()) for one in model.weights if one.shape == ()]
                shown = [value for name in sorted(history) for value in history[name]]
                found[f"{kind}{' eagerly' if is_eager else ''} by {way}"] = np.array([count, *shown])
    return found


def draws_while_traced(ctx: Any) -> dict[str, Any]:
    """Fits a model whose step, loss and layer draw numbers and count in Python; with checks and without.

    Of one step: more may go into a call, which is traced by itself. Returns what is left of generators, and
    the counts.
    """

    own = random.Random(3)
    seen: list[float] = []

    class Noisy(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.drawn = 0, []

        def call(self, inputs: Any) -> Any:
            self.calls += 1
            self.drawn.append(float(np.random.uniform()))
            return inputs + 0.01 * random.random()

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.noisy, self.dense = Noisy(), keras.layers.Dense(1, kernel_initializer="ones")
            self.noisy.build((None, 5))
            self.dense.build((None, 5))

        def call(self, inputs: Any) -> Any:
            return self.dense(self.noisy(inputs))

        def train_step(self, data: Any) -> Any:
            x, y = data
            seen.append(own.random())
            loss = descend(self, self.optimizer, lambda: tf.reduce_mean((self(x, training=True) - y) ** 2))
            return {"loss": loss}

    data, found = tf.data.Dataset.from_tensor_slices(_rows(32)).batch(32), {}
    try:
        for checks in (True, False):
            rehearsal.enable(checks)
            keras.utils.set_random_seed(5)
            own.seed(3)
            seen.clear()
            with ctx.strategy.scope():
                model = Own()
                model.compile("sgd", "mse")
            model.fit(data, epochs=1, verbose=0)
            left = [random.random(), float(np.random.uniform()), own.random(), float(tf.random.uniform([]))]
            counts = [model.noisy.calls, len(model.noisy.drawn), len(seen)]
            found[f"checks={checks}"] = np.array([*left, *counts])
    finally:
        rehearsal.enable(True)
    return found


def undone_in_python(ctx: Any) -> dict[str, Any]:
    """Changes objects of many kinds in a block that is undone; returns what they hold after it."""

    class Kept:
        total = 0.0

        def __init__(self) -> None:
            self.count, self.name, self.flag = 1, "before", False
            self.numbers, self.by_name, self.layers, self.variables = [1], {"a": 1}, [], []
            self.last = None

    kept, outside = Kept(), 1

    def step() -> None:
        nonlocal outside
        outside += 1
        kept.count, kept.name, kept.flag, kept.total = 2, "after", True, 3.0
        kept.numbers.append(2)
        kept.by_name["b"] = tf.constant(2.0)
        kept.layers.append(tf.keras.layers.Dense(1))
        with tf.init_scope():
            kept.variables.append(tf.Variable(1.0))
        kept.last = tf.constant(1.0)

    layer = tf.keras.layers.Dense(2)
    with side_effects.undone(step), tf.Graph().as_default():
        step()
    before = random.getstate()
    with side_effects.undone(layer):
        random.random()
        layer.build((None, 3))
    return {
        "undone": [kept.count, kept.name, kept.total, kept.numbers, kept.by_name, kept.last, outside],
        "kept": [kept.flag, len(kept.layers), len(kept.variables)],
        "moved by building": random.getstate() != before,
    }


def _rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)).astype("float32"), rng.normal(size=(count, 1)).astype("float32")


def orders(ctx: Any, *, seed: int | None = None) -> dict[str, Any]:
    """Returns what each of three epochs reads and draws, by what draws it.

    Args:
      seed: What the program gives to `set_random_seed`; None for a program without a seed.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    numbers = tf.data.Dataset.range(12)

    def augmented(number: tf.Tensor) -> tf.Tensor:
        drawn = tf.random.uniform([], maxval=1000, dtype=tf.int32)
        flipped = tf.random.uniform([]) < 0.5
        more = tf.cond(flipped, lambda: tf.random.normal([]), lambda: tf.random.truncated_normal([]))
        return tf.cast(number, tf.float32) + tf.cast(drawn, tf.float32) + more

    pipelines = {
        "shuffle": numbers.shuffle(12),
        "map": numbers.map(augmented),
        "parallel map": numbers.map(augmented, num_parallel_calls=4, deterministic=True),
        "map of batches": numbers.batch(12).map(tf.random.shuffle).unbatch(),
        "decorated map": numbers.map(tf.function(augmented)),
        "map of pairs": tf.data.Dataset.zip((numbers, numbers)).map(lambda one, _: augmented(one)),
        "image": numbers.map(lambda one: tf.image.random_brightness(tf.fill([1, 1, 3], 1.0), 0.5)[0, 0, 0]),
    }
    found = {
        name: np.array([[float(one) for one in dataset] for _ in range(3)])
        for name, dataset in pipelines.items()
    }
    seen: list[list[int]] = []

    class Model(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def train_step(self, data: Any) -> Any:
            tf.py_function(lambda rows: seen.append(rows.numpy()[:, 0].astype(int).tolist()), [data[0]], [])
            return super().train_step(data)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    x = np.arange(1, 13, dtype="float32").reshape(-1, 1)
    for way, shuffle in (("arrays", True), ("arrays by batch", "batch")):
        with ctx.strategy.scope():
            model = Model()
            model.compile("sgd", "mse")
        seen.clear()
        model.fit(x, x * 0, batch_size=12, epochs=3, shuffle=shuffle, verbose=0)
        found[way] = np.array([one for one in seen if 0 not in one])
    found["eager"] = np.array([float(tf.random.uniform([])) for _ in range(3)])[:, None]
    return found


def unseeded_epochs(ctx: Any, *, kind: str, epochs: int) -> dict[str, Any]:
    """Trains for some epochs in a program without a seed, on one row a step; a new attempt continues.

    Args:
      kind: `arrays`, or `map`: a dataset whose map function draws noise.
    """
    x, y = _rows(8)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    options = {"epochs": epochs, "verbose": 0, "callbacks": ctx.callbacks()}
    if kind == "arrays":
        model.fit(x, y, batch_size=2, **options)
    else:
        data = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(data.map(lambda x, y: (x + tf.random.normal([5]), y)).batch(2), **options)
    return {"weights": flat(model)}
