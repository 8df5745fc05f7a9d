"""Train functions whose workers begin with other values, or come to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from tests.support.inside import notes_of

keras = tf.keras


def _model(ctx: Any) -> Any:
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Dense(4, name="hidden"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1, name="last"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def _data() -> Any:
    x = np.random.default_rng(1).normal(size=(32, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)


def _step(model: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.square(y - model(x))[:, 0], global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    return step


def _by_worker(ctx: Any, layer: Any) -> None:
    """Gives a layer other weights in each worker."""
    rng = np.random.default_rng(ctx.task.index)
    layer.set_weights([rng.normal(size=one.shape) for one in layer.get_weights()])


def unequal(ctx: Any, *, how: str) -> dict[str, Any]:
    """Trains by `how`; returns the error's sentence, and what else was noted."""
    model = _model(ctx)
    if how != "checkpoint":
        _by_worker(ctx, model.get_layer("last"))

    def change(epoch: int, logs: Any) -> None:
        if ctx.task.index == 1:
            _by_worker(ctx, model.get_layer("last"))

    error = ""
    try:
        if how == "ctx.fit":
            ctx.fit(model, _data(), epochs=1)
        elif how == "checkpoint":
            ctx.fit(model, _data(), epochs=2, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=change)])
        elif how == "model.fit":
            model.fit(_data(), epochs=1, verbose=0)
        elif how == "save":
            ctx.save(step=1, model=model)
        else:
            ctx.train_steps(_step(model), _data().repeat(), num_steps=4)
    except UnsupportedError as raised:
        error = str(raised)
    return {"error": error}


def equal(ctx: Any) -> dict[str, Any]:
    """Trains in every way what all workers begin alike, but a generator; returns the notes."""
    model = _model(ctx)
    with ctx.strategy.scope():
        model.generator = tf.random.Generator.from_seed(ctx.task.index)
        model.generator.reset_from_seed(ctx.task.index)
    ctx.fit(model, _data(), epochs=2)  # with checkpoints inside of an epoch, where statistics differ
    model.fit(_data(), epochs=1, verbose=0)
    step = _step(model)
    for _ in range(2):
        ctx.train_steps(step, _data().repeat(), num_steps=3)
    ctx.save(step=20, model=model, optimizer=model.optimizer)
    return {"notes": notes_of(ctx)}


def accumulating(ctx: Any, *, is_of_keras: bool) -> dict[str, Any]:
    """Adds up the gradients of several batches by hand, in variables that each replica assigns.

    Args:
      is_of_keras: Whether they are variables of Keras's, and not of TensorFlow's.
    """

    class Accumulating(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.count.assign_add(1)
            is_due = tf.cast(tf.equal(self.count % 4, 0), tf.float32)
            for total, one in zip(self.totals, gradients, strict=True):
                total.assign_add(one)
            due = [tf.convert_to_tensor(one) * is_due for one in self.totals]
            self.optimizer.apply_gradients(zip(due, self.trainable_variables, strict=True))
            for total in self.totals:
                total.assign(tf.convert_to_tensor(total) * (1.0 - is_due))
            return {"loss": loss}

    def zeros(index: int, shape: Any) -> Any:
        if is_of_keras and hasattr(keras, "Variable"):
            return keras.Variable(tf.zeros(shape), trainable=False, name=f"total_{index}")
        return tf.Variable(tf.zeros(shape), trainable=False, name=f"total_{index}")

    with ctx.strategy.scope():
        inputs = keras.Input((3,))
        model = Accumulating(inputs, keras.layers.Dense(1)(inputs))
        shapes = [weight.shape for weight in model.weights]
        model.count = tf.Variable(0, trainable=False)  # with tf_keras one of its weights
        model.totals = [zeros(*one) for one in enumerate(shapes)]
        model.compile(keras.optimizers.SGD(0.1))
    error = ""
    try:
        ctx.fit(model, _data(), epochs=2)
    except UnsupportedError as raised:
        error = str(raised)
    return {"error": error, "steps": int(model.optimizer.iterations.numpy())}


def weights_by_hand(ctx: Any) -> dict[str, Any]:
    """Assigns to weights in a loop, in one beside an optimizer and in a `train_step`, as tutorials do.

    Each way once from the replica's own gradients and once from those of all replicas.
    """
    x = np.arange(32, dtype="float32").reshape(32, 1) / 32
    data = tf.data.Dataset.from_tensor_slices((x, 3 * x + 2)).batch(8)

    def of_all(gradient: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("MEAN", gradient)

    class Model(keras.Model):
        def __init__(self, reduced: Any) -> None:
            super().__init__()
            half = keras.initializers.Constant(0.5)
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=half)
            self.reduced = reduced

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            for weight, gradient in zip(
                self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
            ):
                weight.assign_sub(0.1 * self.reduced(gradient))
            return {"loss": loss}

    def in_fit(reduced: Any) -> float:
        with ctx.strategy.scope():
            model = Model(reduced)
            model.build((None, 1))
            model.compile(keras.optimizers.SGD(0.1))
        model.fit(data, verbose=0)
        return float(model.get_weights()[0].item())

    def in_loop(reduced: Any, *, has_optimizer: bool = False) -> float:
        with ctx.strategy.scope():
            weight, other = tf.Variable([[0.5]], name="weight"), tf.Variable(1.0)
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([other])

        def step(batch: Any) -> dict[str, Any]:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x * weight - y) ** 2)
            gradient = tape.gradient(loss, weight)
            if has_optimizer:
                optimizer.apply_gradients([(tf.reduce_mean(gradient), other)])
            weight.assign_sub(0.1 * reduced(gradient))
            return {"loss": loss}

        ctx.train_steps(step, data, num_steps=4)
        return float(weight.numpy().item())

    ways = {"loop": in_loop, "beside": functools.partial(in_loop, has_optimizer=True), "fit": in_fit}
    trained: dict[str, Any] = {}
    for name, way in ways.items():
        trained[f"{name}, of all"] = way(of_all)
        try:
            trained[name] = way(tf.identity)
        except UnsupportedError as error:
            trained[name] = str(error)
    return {"trained": trained, "notes": notes_of(ctx)}
