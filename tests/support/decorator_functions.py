"""Models whose code has tf.function at each place where people put it, trained with raydist and without."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from raydist import tf_private
from tests.support.in_tasks import flat, refusal

Decorate = Callable[..., Callable[[Callable[..., Any]], Any]]

ROWS, SIZE, BATCH = 40, 5, 16


class Program(NamedTuple):
    """A model as its user writes it.

    Attributes:
      model: Of a base class and the arguments of a functional model.
      compiled: Arguments of `compile`.
      mapped: What the data are mapped by.
      calls: What is called after `fit`: evaluate, predict, or train_on_batch.
    """

    model: type
    compiled: Mapping[str, Any]
    mapped: Callable[..., Any] | None = None
    calls: tuple[str, ...] = ()


def _is_3() -> bool:
    return not tf.keras.Model.__module__.startswith("tf_keras")


def _own_model() -> type:
    """Returns a class of models whose steps show a loss of their own."""

    class Model(tf.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.shown = tf.keras.metrics.Mean(name="distance")

        @property
        def metrics(self) -> list[Any]:
            return [self.shown]

        def shows(self, loss: Any) -> dict[str, Any]:
            self.shown.update_state(loss)
            return {"distance": self.shown.result()}

        def test_step(self, data: Any) -> Any:
            x, y = data
            return self.shows(_mean(y, self(x, training=False)))

    return Model


def _mean(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(y - predicted))


def _gradient_step(model: Any, data: Any, loss_of: Callable[[Any, Any], Any] | None = _mean) -> Any:
    """Trains by a loss, or by that of the model; returns it."""
    x, y = data
    with tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted) if loss_of is None else loss_of(y, predicted)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def _batch_signature() -> list[Any]:
    return [(tf.TensorSpec([None, SIZE]), tf.TensorSpec([None, 1]))]


def own_train_step(decorate: Decorate) -> Program:
    class Model(_own_model()):  # type: ignore[misc]
        @decorate(_batch_signature)
        def train_step(self, data: Any) -> Any:
            return self.shows(_gradient_step(self, data, loss_of=None))

    return Program(Model, {"loss": "mse"})


def train_step_of_a_mean(decorate: Decorate) -> Program:
    class Model(_own_model()):  # type: ignore[misc]
        @decorate(_batch_signature)
        def train_step(self, data: Any) -> Any:
            return self.shows(_gradient_step(self, data))

    return Program(Model, {"loss": "mse"})


def helper_of_train_step(decorate: Decorate) -> Program:
    class Model(_own_model()):  # type: ignore[misc]
        @decorate(_batch_signature)
        def learn(self, data: Any) -> Any:
            return _gradient_step(self, data)

        def train_step(self, data: Any) -> Any:
            return self.shows(self.learn(data))

    return Program(Model, {"loss": "mse"})


def helper_that_makes_a_variable(decorate: Decorate) -> Program:
    class Model(_own_model()):  # type: ignore[misc]
        count = None

        @decorate(_batch_signature)
        def learn(self, data: Any) -> Any:
            if self.count is None:
                self.count = tf.Variable(1.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
            return _gradient_step(self, data) * self.count

        def train_step(self, data: Any) -> Any:
            return self.shows(self.learn(data))

    return Program(Model, {"loss": "mse"})


def step_of_super(decorate: Decorate) -> Program:
    class Model(tf.keras.Model):
        @decorate(None)
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    return Program(Model, {"loss": "mse", "metrics": ["mae"]}, calls=("train_on_batch", "evaluate"))


def own_test_step(decorate: Decorate) -> Program:
    class Model(_own_model()):  # type: ignore[misc]
        @decorate(_batch_signature)
        def test_step(self, data: Any) -> Any:
            x, y = data
            return self.shows(_mean(y, self(x, training=False)))

    return Program(Model, {"loss": "mse"}, calls=("evaluate",))


def test_step_of_super(decorate: Decorate) -> Program:
    class Model(tf.keras.Model):
        @decorate(_batch_signature)
        def test_step(self, data: Any) -> Any:
            return super().test_step(data)

    return Program(Model, {"loss": "mse", "metrics": ["mae"]}, calls=("evaluate",))


def own_predict_step(decorate: Decorate) -> Program:
    class Model(tf.keras.Model):
        @decorate(_batch_signature)
        def predict_step(self, data: Any) -> Any:
            return 2.0 * self(data[0], training=False)

    return Program(Model, {"loss": "mse"}, calls=("predict",))


def call_of_model(decorate: Decorate) -> Program:
    class Model(tf.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

        @decorate(lambda: [tf.TensorSpec([None, SIZE])])
        def call(self, x: Any) -> Any:
            return self.dense(x)

    return Program(Model, {"loss": "mse", "metrics": ["mae"]}, calls=("evaluate", "predict"))


def call_of_layer(decorate: Decorate) -> Program:
    class Scaled(tf.keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(name="scale", shape=(1,), initializer="ones")
            self.steps = self.add_weight(name="steps", shape=(), initializer="zeros", trainable=False)

        @decorate(lambda: [tf.TensorSpec([None, 1])])
        def scaled(self, x: Any) -> Any:
            return x * self.scale

        @decorate(lambda: [tf.TensorSpec([None, 1])])
        def call(self, x: Any) -> Any:
            self.add_loss(1e-2 * tf.reduce_sum(tf.square(self.scale)))
            return self.scaled(x)

    class Model(tf.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
            self.scaled = Scaled()

        def call(self, x: Any) -> Any:
            return self.scaled(self.dense(x))

    return Program(Model, {"loss": "mse"}, calls=("predict",))


def _pair() -> list[Any]:
    return [tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1])]


def loss_function(decorate: Decorate) -> Program:
    @decorate(_pair)
    def distance(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    return Program(tf.keras.Model, {"loss": distance}, calls=("evaluate",))


def keras_loss_inside_a_function(decorate: Decorate) -> Program:
    loss = tf.keras.losses.Huber()

    class Model(_own_model()):  # type: ignore[misc]
        @decorate(_pair)
        def distance(self, y_true: Any, y_pred: Any) -> Any:
            return loss(y_true, y_pred)

        def train_step(self, data: Any) -> Any:
            return self.shows(_gradient_step(self, data, self.distance))

    return Program(Model, {"loss": "mse"})


def loss_object_in_a_function(decorate: Decorate) -> Program:
    distance = decorate(_pair)(tf.keras.losses.Huber())

    class Model(_own_model()):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return self.shows(_gradient_step(self, data, distance))

    return Program(Model, {"loss": "mse"})


def call_of_loss(decorate: Decorate) -> Program:
    class Distance(tf.keras.losses.Loss):
        @decorate(_pair)
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

    return Program(tf.keras.Model, {"loss": Distance()})


def metric_function(decorate: Decorate) -> Program:
    @decorate(_pair)
    def distance(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

    return Program(tf.keras.Model, {"loss": "mse", "metrics": [distance]})


def update_of_metric(decorate: Decorate) -> Program:
    class Total(tf.keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="total")
            self.value = self.add_weight(name="value", shape=(), initializer="zeros")

        @decorate(None)
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.value.assign_add(tf.reduce_sum(tf.square(y_true)))

        @decorate(None)
        def result(self) -> Any:
            return self.value * 1.0

    return Program(tf.keras.Model, {"loss": "mse", "metrics": [Total]}, calls=("evaluate",))


def update_of_optimizer(decorate: Decorate) -> Program:
    class Slow(tf.keras.optimizers.SGD):
        @decorate(None)
        def slow(self, gradient: Any) -> Any:
            return 0.5 * gradient

        @decorate(None)
        def update_step(self, gradient: Any, variable: Any, *rate: Any) -> None:
            super().update_step(self.slow(gradient), variable, *rate)

    return Program(tf.keras.Model, {"loss": "mse", "optimizer": lambda: Slow(0.05, momentum=0.9)})


def apply_of_optimizer(decorate: Decorate) -> Program:
    class Slow(tf.keras.optimizers.Adam):
        @decorate(None)
        def apply_gradients(self, pairs: Any, **kwargs: Any) -> Any:
            return super().apply_gradients([(0.5 * gradient, one) for gradient, one in pairs], **kwargs)

    class Model(_own_model()):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return self.shows(_gradient_step(self, data))

    return Program(Model, {"loss": "mse", "optimizer": lambda: Slow(0.05)})


def schedule(decorate: Decorate) -> Program:
    class Falling(tf.keras.optimizers.schedules.LearningRateSchedule):
        @decorate(None)
        def __call__(self, step: Any) -> Any:
            return 0.05 / (1.0 + tf.cast(step, tf.float32))

    return Program(tf.keras.Model, {"loss": "mse", "optimizer": lambda: tf.keras.optimizers.SGD(Falling())})


def map_function(decorate: Decorate) -> Program:
    @decorate(lambda: [tf.TensorSpec([None, SIZE]), tf.TensorSpec([None, 1])])
    def moved(x: Any, y: Any) -> Any:
        return x + 0.5, y

    return Program(tf.keras.Model, {"loss": "mse"}, moved)


def regularizer(decorate: Decorate) -> Program:
    @decorate(None)
    def penalty(weights: Any) -> Any:
        return 1e-2 * tf.reduce_sum(tf.square(weights))

    class Model(tf.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=penalty)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    return Program(Model, {"loss": "mse"})


def weighted_loss(decorate: Decorate) -> Program:
    """Its loss divides by the weights of the global batch: a collective inside of the decorated step."""

    def weigh(x: Any, y: Any) -> Any:
        return x, y, tf.cast(tf.range(tf.shape(x)[0]) % 3, tf.float32)

    class Model(tf.keras.Model):
        @decorate(None)
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    return Program(Model, {"loss": "mse"}, weigh)


def function_of_two_models(decorate: Decorate) -> Program:
    @decorate(None)
    def learn(model: Any, data: Any) -> Any:
        return _gradient_step(model, data)

    class Model(_own_model()):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return self.shows(learn(self, data))

    class Other(Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            inputs = tf.keras.Input((SIZE,))
            first = Model(inputs, tf.keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
            first.compile("sgd", "mse")
            first.fit(tf.data.Dataset.from_tensor_slices(_rows()).batch(BATCH), verbose=0)

    return Program(Other, {"loss": "mse"})


def eager_step(decorate: Decorate) -> Program:
    program = helper_of_train_step(decorate)
    return program._replace(compiled={"loss": "mse", "run_eagerly": True})


def eager_loss(decorate: Decorate) -> Program:
    program = keras_loss_inside_a_function(decorate)
    return program._replace(compiled={"loss": "mse", "run_eagerly": True})


def several_steps_in_a_call(decorate: Decorate) -> Program:
    program = own_train_step(decorate)
    return program._replace(compiled={"loss": "mse", "steps_per_execution": 2})


DECORATORS: dict[str, Decorate] = {
    "none": lambda signature: lambda function: function,
    "function": lambda signature: tf.function,
    "jit_compile": lambda signature: tf.function(jit_compile=True),
    "reduce_retracing": lambda signature: tf.function(reduce_retracing=True),
    "input_signature": lambda signature: tf.function(input_signature=signature and signature()),
}


def _rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(ROWS, SIZE)).astype("float32"), rng.normal(size=(ROWS, 1)).astype("float32")


def _data(program: Program) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(_rows()).batch(BATCH)
    return data if program.mapped is None else data.map(program.mapped)


def _evaluated(model: Any) -> Callable[[Any], dict[str, Any]]:
    return functools.partial(model.evaluate, verbose=0, return_dict=True)


def _trained(ctx: Any, program: Program, *, by_context: bool) -> dict[str, np.ndarray]:
    """Returns weights, logs, values and predictions."""
    keras = tf.keras
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if ctx is None else ctx.strategy.scope():
        inputs = keras.Input((SIZE,))
        model = program.model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
        compiled = dict(program.compiled)
        if "metrics" in compiled:
            compiled["metrics"] = [one() if isinstance(one, type) else one for one in compiled["metrics"]]
        compiled["optimizer"] = compiled.get("optimizer", lambda: keras.optimizers.SGD(0.05))()
        model.compile(**compiled)
    server_steps = 3 if ctx is not None and ctx.coordinator is not None else None
    data: Any = functools.partial(_data, program) if server_steps else _data(program)
    validated = data if "evaluate" in program.calls else None
    if by_context:
        history = ctx.fit(model, data, epochs=2, validation_data=validated, steps_per_epoch=server_steps)
    else:
        history = model.fit(data, epochs=2, validation_data=validated, verbose=0)
    found = {f"log {name}": np.asarray(value) for name, value in sorted(history.history.items())}
    if "train_on_batch" in program.calls and not server_steps:
        x, y = _rows()
        model.train_on_batch(x[:9], y[:9])
    # Those of the model itself may have metrics of its own among them, which parameter servers leave at 0.
    found["weights"] = np.concatenate([np.ravel(one) for each in model.layers for one in each.get_weights()])
    if "evaluate" in program.calls:
        evaluate = functools.partial(ctx.evaluate, model) if by_context else _evaluated(model)
        found |= {f"value {name}": np.asarray(value) for name, value in sorted(evaluate(data).items())}
    if "predict" in program.calls and not server_steps:
        predicted = ctx.predict(model, data) if by_context else model.predict(data, verbose=0)
        found["predicted"] = np.ravel(predicted)
    return found


def train_cells(ctx: Any, *, cells: list[tuple[str, str, str]], plain: list[str]) -> dict[str, Any]:
    """Returns what programs train to, or what they raise, by names of a program, a decorator, and who trains.

    And what Keras alone trains programs of `plain` to, without a decorator.
    """
    results: dict[str, Any] = {}
    for place, decorator, way in [*((place, "none", "plain") for place in plain), *cells]:
        key = f"{place}/{decorator}/{way}"
        try:
            program: Program = globals()[place](DECORATORS[decorator])
            found = _trained(None if way == "plain" else ctx, program, by_context=way == "ctx.fit")
        except Exception:
            results[f"{key}/error"] = traceback.format_exc()
            continue
        results |= {f"{key}/{name}": value for name, value in found.items()}
    return results


def accumulated(ctx: Any) -> dict[str, Any]:
    """Returns weights of `ctx.fit` by two batches an update, and those of Keras alone by batches of both."""
    program = train_step_of_a_mean(DECORATORS["function"])
    found = {}
    for name, context, size in (("plain", None, 2 * BATCH), ("ctx.fit", ctx, BATCH)):
        with contextlib.nullcontext() if context is None else context.strategy.scope():
            inputs = tf.keras.Input((SIZE,))
            outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(inputs)
            model = program.model(inputs, outputs)
            model.compile(tf.keras.optimizers.SGD(0.05), "mse")
        data = tf.data.Dataset.from_tensor_slices(_rows()).batch(size)
        if context is None:
            model.fit(data, epochs=2, verbose=0)
        else:
            context.fit(model, data, epochs=2, accumulate=2)
        found[name] = flat(model)
    return found


def loop_of_decorated_steps(ctx: Any) -> dict[str, Any]:
    """Returns weights after `ctx.train_steps` of a step, and of the same step with a decorator."""
    return {
        "none": _looped(ctx, lambda step: step),
        "function": _looped(ctx, tf.function),
        "reduce_retracing": _looped(ctx, tf.function(reduce_retracing=True)),
    }


def _looped(ctx: Any, decorate: Callable[[Callable[..., Any]], Any]) -> np.ndarray:
    keras = tf.keras
    with ctx.strategy.scope():
        layer, optimizer = keras.layers.Dense(1, kernel_initializer="ones"), keras.optimizers.SGD(0.05)
        layer.build((None, SIZE))
        optimizer.build(layer.trainable_variables)

    @decorate
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = _mean(y, layer(x))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return {"loss": loss}

    data = tf.data.Dataset.from_tensor_slices(_rows()).batch(BATCH)
    ctx.train_steps(step, data, num_steps=3, steps_per_call=2)
    return flat(layer)


def traces_that_are_kept(ctx: Any) -> dict[str, Any]:
    """Returns how often a function has traces of its own, and what it was called with."""
    seen: list[list[Any]] = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64)])
    def function(values: Any, number: Any) -> Any:
        seen.append([values.shape.as_list(), number.dtype.name])
        if number > 1:  # which takes AutoGraph
            values = values + 1.0
        return {"values": values, "two": 2, "none": None}

    def outer() -> Any:
        with tf_private.inlined_functions():
            found = function(np.array([1.0, 2.0], "float32"), 2)
        return found["values"], tf.cast(found["two"], tf.float32), found["none"] is None

    values, two, is_none = tf.function(outer)()
    inlined = function.experimental_get_tracing_count()
    function(tf.constant([1.0]), 2)
    return {
        "values": values.numpy().tolist(),
        "two": float(two),
        "is_none": bool(is_none),
        "seen": seen,
        "traces": [inlined, function.experimental_get_tracing_count()],
    }


def kept_graph(ctx: Any) -> dict[str, Any]:
    """Trains by a step that keeps the graph of its first call; returns what that raises."""

    class Model(_own_model()):  # type: ignore[misc]
        learn = None

        def train_step(self, data: Any) -> Any:
            if self.learn is None:
                learn = tf.function(lambda x, y: _gradient_step(self, (x, y)))
                specs = [tf.TensorSpec([None, SIZE]), tf.TensorSpec([None, 1])]
                self.learn = learn.get_concrete_function(*specs)
            return self.shows(self.learn(*data))

    return {"raised": refusal(_trained, ctx, Program(Model, {"loss": "mse"}), by_context=True)}


def steps_that_change_nothing_at_first(ctx: Any) -> dict[str, Any]:
    """Returns what each of such steps raises in a training; "" for nothing."""
    found: dict[str, Any] = {}
    for name, (step, compiled) in _idle_steps().items():
        model = type("Model", (_own_model(),), {"train_step": step})
        program = Program(model, {"loss": "mse", **compiled})
        found[name] = refusal(_trained, ctx, program, by_context=True)
    return found


def _idle_steps() -> dict[str, tuple[Callable[[Any, Any], Any], dict[str, Any]]]:
    keras = tf.keras

    def trained(model: Any, data: Any) -> Any:
        return model.shows(_gradient_step(model, data))

    def each_second(model: Any, data: Any) -> Any:
        def learn() -> Any:
            return _gradient_step(model, data)

        is_wanted = tf.equal(tf.cast(model.optimizer.iterations, tf.int32) % 2, 1)
        return model.shows(tf.cond(is_wanted, learn, lambda: 0.0))

    def evaluated(model: Any, data: Any) -> Any:
        return model.shows(tf.reduce_mean(model(data[0])))

    def assigned(model: Any, data: Any) -> Any:
        for one in model.trainable_variables:
            one.assign(one * 0.5)
        return model.shows(tf.reduce_mean(model(data[0])))

    def overflowing() -> Any:
        return keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(float("inf")))

    return {
        "rate of 0": (trained, {"optimizer": lambda: keras.optimizers.SGD(0.0)}),
        "each second step": (each_second, {}),
        "no gradients": (evaluated, {}),
        "assigned by hand": (assigned, {}),
        "scaled": (trained, {"optimizer": overflowing}),
    }


def eager_replicas(ctx: Any) -> dict[str, Any]:
    """Returns what a decorated loss is in eager replicas once it was called outside, and a bare one."""
    loss = tf.keras.losses.MeanSquaredError(**({} if _is_3() else {"reduction": "sum"}))
    one, zero = tf.ones([2, 1]), tf.zeros([2, 1])

    @tf.function
    def scaled() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.stack([loss(one, zero), tf.cast(number, tf.float32)])

    outside = scaled()
    found = {"outside": outside.numpy().tolist()}
    for name, function in (("decorated", scaled), ("bare", scaled.python_function)):
        parts = ctx.strategy.experimental_local_results(ctx.strategy.run(lambda: function()))  # noqa: B023
        found[name] = [part.numpy().tolist() for part in parts]
    return found
