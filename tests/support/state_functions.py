"""Train functions whose models have state of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from tests.support.inside import forget_notes, notes_of
from tests.support.train_functions import dense_model, examples

keras = tf.keras


def state_that_cannot_be_saved(ctx: Any) -> dict[str, Any]:
    """Fits a model that has a table, an iterator and an optimizer that is not built; returns the notes."""
    data = tf.data.Dataset.from_tensor_slices(examples(32)).batch(16)
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
        model.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        model.replay = iter(data)
        model.d_optimizer = tf.keras.optimizers.Adam(name="for_later")
    ctx.fit(model, data, epochs=1)
    return {"notes": notes_of(ctx)}


def assigned(ctx: Any, *, forms: list[str]) -> dict[str, Any]:
    """Returns by form what a variable of the user's own holds in the end, and what was told of it.

    Args:
      forms: Each says where the variable is made, what assigns to it, with which options, and what: "one" is
        added each time, "mean" of the batch too, "set" is assigned, and by "draw" it is a generator.
    """
    found: dict[str, Any] = {}
    for form in forms:
        forget_notes(ctx)
        try:
            found[form], told = _value_of(ctx, *form.split()), notes_of(ctx)
        except UnsupportedError as error:
            found[form], told = None, [str(error)]
        found[f"{form} told"] = [one for one in told if "assigns to" in one or "made outside" in one]
    return found


def _value_of(ctx: Any, made: str, used: str, options: str, value: str) -> float:
    held = dict[str, Any]()

    def make(place: str) -> None:
        if place == made and not held and value == "draw":
            held["seen"] = tf.random.Generator.from_seed(3)
        elif place == made and not held:
            aggregation, _, synchronization = options.partition(",")
            held["seen"] = tf.Variable(
                0.0,
                trainable=False,
                name="seen",
                aggregation=getattr(tf.VariableAggregation, aggregation),
                synchronization=getattr(tf.VariableSynchronization, synchronization or "AUTO"),
            )

    def use(place: str, x: Any) -> None:
        if place != used.removeprefix("eager_"):
            return
        make("step")
        if value == "draw":
            held["seen"].normal([2])
        elif value == "set":
            held["seen"].assign(1.0)
        else:
            held["seen"].assign_add(1.0 if value == "one" else tf.reduce_mean(tf.abs(x)))

    class Own(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            use("call", x)
            return x

    class Model(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            use("train_step", data[0])
            return super().train_step(data)

        def test_step(self, data: Any) -> Any:
            use("test_step", data[0])
            return super().test_step(data)

    def loss(y: Any, predicted: Any) -> Any:
        use("loss", y)
        return tf.square(y - predicted)

    def step(batch: Any) -> dict[str, Any]:
        use("loop", batch[0])
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.square(batch[1] - model(batch[0], training=True)))
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"error": error}

    make("outside")
    with ctx.strategy.scope():
        make("scope")
        inputs = keras.Input((6,))
        hidden = Own()(inputs) if used == "call" else inputs
        model = Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(hidden))
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, loss=loss, run_eagerly=used.startswith("eager"))
        if made == "scope":
            model.seen = held["seen"]  # which the chief alone comes across when it exports
    x, _ = examples(24)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    if used == "loop":
        ctx.train_steps(step, data, num_steps=3)
    elif used == "test_step":
        model.evaluate(data, verbose=0)
    else:
        ctx.fit(model, data, epochs=1)
    return float(np.ravel(getattr(held["seen"], "state", held["seen"]).numpy())[0])
