"""Train functions that are right on one device and wrong on several replicas."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.task import failure_of
from tests.support.in_tasks import refusal
from tests.support.train_functions import examples

keras = tf.keras


def messages(ctx: Any, *, mistakes: list[str]) -> dict[str, Any]:
    """Makes each mistake and returns what the run would tell of it; the last one may break the cluster."""
    told = {}
    for name in mistakes:
        try:
            globals()[name](ctx)
        except Exception as error:
            failure = failure_of(ctx.task, error)
            told[name] = [failure.kind.name, failure.message, failure.traceback]
    return {"told": told}


def loss_with_the_default_reduction(ctx: Any) -> None:
    """A loss of tf_keras, made as for one device, called in a loop of the user's own."""
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(0.1)

    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    x, y = examples(8)
    ctx.strategy.run(step, args=((tf.constant(x), tf.constant(y)),))


def summary_without_tensorboard(ctx: Any) -> None:
    """Writes a summary where TensorBoard is not installed."""
    gone = dict.fromkeys(("tensorboard", "tensorboard.summary", "tensorboard.summary.v2"))
    with mock.patch.dict(sys.modules, gone):
        tf.summary.scalar("loss", 0.5, step=1)


def loop_over_other_sizes(ctx: Any) -> None:
    """A bare loop in which each worker has batches of another size, and sums a loss for each example."""

    @tf.function
    def run(ids: Any) -> Any:
        losses = ctx.strategy.run(lambda ids: tf.cast(ids, tf.float32), args=(ids,))
        return ctx.strategy.reduce("SUM", losses, axis=None)

    data = tf.data.Dataset.range(40).batch(4 + ctx.task.index)
    for ids in ctx.strategy.distribute_datasets_from_function(lambda _: data):
        run(ids)


def label_out_of_range(ctx: Any) -> None:
    """Fits a model of three classes to a label 7."""
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)])
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = examples(8)
    y[3] = 7
    ctx.fit(model, x, y, epochs=1, batch_size=8)


def assertion_in_a_step(ctx: Any) -> None:
    """Fits a model whose own step asserts what is not so."""

    class Asserting(tf.keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            tf.debugging.assert_less(tf.reduce_max(data[0]), -1.0e6, "inputs are small")
            return super().train_step(data)

    with ctx.strategy.scope():
        given = tf.keras.layers.Input((6,))
        model = Asserting(given, tf.keras.layers.Dense(3)(given))
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = examples(8)
    ctx.fit(model, x, y, epochs=1, batch_size=8)


def functions_of_own_steps(ctx: Any) -> dict[str, Any]:
    """Fits and predicts by models that make the functions of their steps, by Keras's and without them."""

    class Predicting(tf.keras.Model):  # type: ignore[misc]
        def make_predict_function(self, force: bool = False) -> Any:
            self.predict_function = lambda batches: self.predict_step(next(iter(batches)))
            return self.predict_function

    class Training(tf.keras.Model):  # type: ignore[misc]
        def make_train_function(self, force: bool = False) -> Any:
            self.train_function = lambda batches: self.train_step(next(batches))
            return self.train_function

    class Counting(tf.keras.Model):  # type: ignore[misc]
        made = 0

        def make_train_function(self, force: bool = False) -> Any:
            self.made += 1
            return super().make_train_function(force)

    def called(cls: Any, call: str) -> str | int:
        with ctx.strategy.scope():
            given = tf.keras.layers.Input((6,))
            model = cls(given, tf.keras.layers.Dense(3)(given))
            model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = examples(8)
        try:
            model.predict(x, verbose=0) if call == "predict" else model.fit(x, y, verbose=0)
        except UnsupportedError as error:
            return str(error)
        return int(getattr(model, "made", 0))

    cells = [(Predicting, "predict"), (Training, "fit"), (Counting, "fit")]
    return {cls.__name__: called(cls, call) for cls, call in cells}


def constant_batch_sizes(ctx: Any) -> dict[str, Any]:
    """Trains, and asks for predictions of, layers that want the 16 rows of a whole batch."""

    class OfSixteen(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.reshape(x, [16, 6])

    class Model(keras.Model):
        def call(self, x: Any) -> Any:
            return tf.reshape(x, [16, 6])

    class Claiming(keras.Model):
        def call(self, x: Any) -> Any:
            same = tf.identity(x)
            same.set_shape([16, 6])
            return same

    class Splitting(keras.Model):
        def call(self, x: Any) -> Any:
            return tf.reshape(tf.reshape(x, [16, 2, 3]), [16, 6])

    class Compiled(keras.Model):
        def call(self, x: Any) -> Any:
            return tf.function(lambda one: tf.reshape(one, [16, 6]), jit_compile=True)(x)

    def with_layer(layer: Any) -> Any:
        return keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(6)])

    x = np.ones((64, 6), np.float32)
    types = (tf.TensorSpec([6]), tf.TensorSpec([6]))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, x, strict=True), output_signature=types)
    errors = {}
    for name, make in {
        "reshapes": lambda: with_layer(OfSixteen(name="reshapes")),
        "adds": lambda: with_layer(keras.layers.Lambda(lambda one: one + tf.ones([16, 1]), name="adds")),
        "whole": lambda: Model(name="whole"),
        "claims": lambda: Claiming(name="claims"),
        "splits": lambda: Splitting(name="splits"),
        "compiles": lambda: Compiled(name="compiles"),
    }.items():
        for length, data in {"known": tf.data.Dataset.from_tensor_slices((x, x)), "not": rows}.items():
            with ctx.strategy.scope():
                model = make()
                model.compile("sgd", "mse")
            batches = data.batch(16)
            errors[f"{name}, {length}, evaluates"] = refusal(lambda: model.evaluate(batches, verbose=0))  # noqa: B023
            errors[f"{name}, {length}"] = refusal(lambda: model.fit(batches, verbose=0))  # noqa: B023
        errors[f"{name}, predicts"] = refusal(lambda: model.predict(x, batch_size=16, verbose=0))  # noqa: B023
    with ctx.strategy.scope():
        model = with_layer(OfSixteen())
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(16)
    errors["ctx.fit"] = refusal(lambda: ctx.fit(model, data, epochs=1))
    return {"errors": errors}


def constant_inputs(ctx: Any) -> dict[str, Any]:
    """Asks models whose Input has the 16 rows of a whole batch, and that count on them, for predictions."""

    class Using(keras.layers.Layer):
        def __init__(self, use: Any, *, name: str) -> None:
            super().__init__(name=name)
            self.use = use

        def call(self, x: Any) -> Any:
            return self.use(x)

    class Multiplying(keras.Model):
        def call(self, x: Any) -> Any:
            return tf.matmul(tf.ones([8, 8]), tf.ones([16, 6])) + x  # wrong on one device too

    uses = {
        "none": lambda x: x,
        "broadcasts": lambda x: tf.broadcast_to(x[:, :1], [16, 6]),
        "unstacks": lambda x: tf.stack(tf.unstack(x, 16)),
        "gathers": lambda x: tf.gather(x, tf.tile([list(range(6))], [16, 1]), batch_dims=1),
        "splits": lambda x: tf.concat(tf.split(x, 16), axis=0),
        "takes 8": lambda x: x - x[8],
        "takes 12": lambda x: x - tf.gather(x, 12),
        "halves": lambda x: x[:8] + x[8:],
        "splits in two": lambda x: tf.add(*tf.split(x, [8, 8])),
        "looks up": lambda x: x + tf.gather(tf.ones([5, 6]), 12),  # wrong on one device too
    }
    # tf_keras makes it one of a replica's rows.
    num_rows = 16 if hasattr(keras, "ops") else None
    told = {}
    for name, use in [*uses.items(), ("multiplies", None)]:
        with ctx.strategy.scope():
            model = Multiplying()
            if use is not None:
                model = keras.Sequential(
                    [keras.Input((6,), batch_size=num_rows), Using(use, name=name.replace(" ", "_"))]
                )
        try:
            told[name] = str(model.predict(np.ones((32, 6)), batch_size=16, verbose=0).shape[0])
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return {"told": told}


def reshape_of_a_part(ctx: Any) -> dict[str, Any]:
    """Reshapes 8 rows of a batch of unknown size to 16 outside of replicas, where nothing keeps it."""

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def mean(rows: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.reshape(rows, [16, 6]) @ tf.ones([6, 1]))

    try:
        return {"mean": float(mean(tf.ones([8, 6])))}
    except tf.errors.InvalidArgumentError:
        return {"mean": None}


def slips(ctx: Any) -> dict[str, str]:
    """Trains on data without batches, and mistypes a name of the context; returns the errors."""
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
        model.compile("sgd", "sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 4), np.float32), np.zeros(8)))
    calls = {
        "fit": lambda: model.fit(data, verbose=0),
        "predict": lambda: model.predict(data, verbose=0),
        "steps": lambda: ctx.train_steps(lambda batch: {"loss": 0.0}, data, num_steps=1),
        "name": lambda: ctx.num_wokers,
        "export": lambda: ctx.export(model),
        "rank": lambda: ctx.rank,
        "epochs": lambda: ctx.fit(model, data, epochs=1.5),
        "size": lambda: ctx.fit(model, np.ones((8, 4)), np.zeros(8), epochs=1, batch_size="8"),
        "class": lambda: ctx.fit(model, data, epochs=1, callbacks=[tf.keras.callbacks.EarlyStopping]),
        "save": lambda: ctx.save(step=1),
    }
    errors = {}
    for name, call in calls.items():
        try:
            call()
        except (AttributeError, UnsupportedError) as error:
            errors[name] = str(error)
    return errors
