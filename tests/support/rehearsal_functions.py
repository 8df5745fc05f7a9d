"""Steps that are rehearsed on batches of several kinds of tensors, or that cannot be rehearsed."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.checks.step_check import StepCheck
from tests.support.in_tasks import flat
from tests.support.inside import forget_notes, notes_of

keras = tf.keras

SIZE = 5


def errors(ctx: Any) -> dict[str, list[float]]:
    """Returns the errors of a step with a mean loss, by the kind of its inputs and the rows of a batch."""

    rng = np.random.default_rng(0)
    with ctx.strategy.scope():
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        dense.build((None, SIZE))
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(dense.trainable_variables)

    def step(batch: Any) -> None:
        x, y = batch
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=[None, SIZE]) + tf.reduce_mean(x, axis=1)[:, None]
        elif isinstance(x, tf.SparseTensor):
            x = tf.sparse.to_dense(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - dense(tf.ensure_shape(x, [None, SIZE]))))
        weights = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    found = {}
    for rows in (16, 17):
        values = rng.normal(size=(rows, SIZE)).astype("float32")
        lengths = [1 + row % SIZE for row in range(rows)]
        inputs = {
            "dense": tf.constant(values),
            "ragged": tf.RaggedTensor.from_tensor(values, lengths=lengths),
            "sparse": tf.sparse.from_dense(np.where(values > 0, values, 0)),
        }
        for kind, x in inputs.items():
            batch = x, tf.constant(rng.normal(size=(rows, 1)).astype("float32"))
            check = StepCheck(step, batch, strategy=ctx.strategy)
            check.measure()
            found[f"{kind}, {rows} rows"] = check.errors[0].tolist()
    return found


def _examples(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.linspace(-1.0, 1.0, rows * width, dtype="float32").reshape(rows, width) for width in (3, 1))
    return x, y


def _dense(keras: Any, model_class: Any) -> Any:
    inputs = keras.Input((3,))
    return model_class(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))


def steps_that_fail(ctx: Any) -> dict[str, Any]:
    """Returns the error and the notes of a fit, of an evaluation and of a loop whose step raises."""

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            raise KeyError("no such feature")

        test_step = train_step

    x, y = _examples(16)
    with ctx.strategy.scope():
        model = _dense(keras, OwnStep)
        model.compile("sgd", "mse")

    def step(batch: Any) -> None:
        raise KeyError("no such feature")

    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)
    calls = {
        "fit": lambda: ctx.fit(model, x, y, batch_size=8, epochs=1, shuffle=False),
        "model.fit": lambda: model.fit(x, y, batch_size=8, verbose=0),
        "evaluate": lambda: model.evaluate(x, y, batch_size=8, verbose=0),
        "train_steps": lambda: ctx.train_steps(step, data, num_steps=2),
    }
    found = {}
    for name, call in calls.items():
        forget_notes(ctx)
        try:
            call()
        except Exception as error:
            found[name] = {"error": str(error), "notes": notes_of(ctx)}
    return found


def evaluated_sums(ctx: Any) -> dict[str, Any]:
    """Returns what `evaluate` shows of a test step with a loss that is a sum, here and on one device."""

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        def test_step(self, data: Any) -> Any:
            x, y = data
            self.compiled_loss(y, self(x, training=False))
            return {metric.name: metric.result() for metric in self.metrics}

    x, y = _examples(16)
    shown = {}
    for name, scope in (("found", ctx.strategy.scope()), ("right", contextlib.nullcontext())):
        with scope:
            model = _dense(keras, OwnStep)
            model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        shown[name] = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)["loss"]
    return shown


def of_a_step_that_callbacks_change(ctx: Any) -> dict[str, Any]:
    """Returns weights after a step whose loss a callback chooses, here and on one device."""

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        reduction = "mean"

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                losses = tf.square(y - self(x, training=True))
                loss = tf.reduce_mean(losses) if self.reduction == "mean" else tf.reduce_sum(losses)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    class Chooses(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.reduction = "sum"

    x, y = _examples(32)
    found = {}
    for name, scope in (("found", ctx.strategy.scope()), ("right", contextlib.nullcontext())):
        with scope:
            model = _dense(keras, OwnStep)
            model.compile(keras.optimizers.SGD(0.01))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        if name == "found":
            ctx.fit(model, data, epochs=1, callbacks=[Chooses()])
        else:
            model.fit(data, epochs=1, verbose=0, callbacks=[Chooses()])
        found[name] = model.layers[-1].get_weights()[0]
    return found


def notes_on_draws_and_metrics(ctx: Any) -> dict[str, Any]:
    """Returns the notes on layers that draw in a condition and in loops, and on a metric that is no sum."""

    class InCondition(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            noise = lambda: inputs + tf.random.normal(tf.shape(inputs))  # noqa: E731
            return tf.cond(tf.reduce_sum(inputs) > -1e9, noise, lambda: inputs)

    class InLoop(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return tf.map_fn(lambda row: row + tf.random.normal([3]), inputs)

    class Largest(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.value.assign(tf.reduce_max(tf.abs(y - predicted)))

        def result(self) -> Any:
            return self.value + 0.0

    x, y = _examples(32)
    found = {}
    for layer in (InCondition, InLoop):
        with ctx.strategy.scope():
            inputs = keras.Input((3,))
            model = keras.Model(inputs, keras.layers.Dense(1)(layer(name=layer.__name__)(inputs)))
            model.compile(keras.optimizers.SGD(0.01), lambda y, p: tf.square(y - p), metrics=[Largest()])
        forget_notes(ctx)
        model.fit(x, y, batch_size=8, verbose=0)
        found[layer.__name__] = notes_of(ctx)
    return found


def made_in_a_step_that_cannot_be_rehearsed(ctx: Any) -> dict[str, Any]:
    """Returns weights after a step makes a variable, here and on one device.

    It asks for a number of rows that a rehearsal does not know.
    """

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        count: Any = None

        def train_step(self, data: Any) -> Any:
            x, y = data
            zeros = tf.constant(np.zeros([x.shape[0], 1], "float32"))
            if self.count is None:
                self.count = tf.Variable(
                    1.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
                )
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True) - zeros)) * self.count
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x, y = _examples(32)
    found = {}
    for name, scope in (("found", ctx.strategy.scope()), ("right", contextlib.nullcontext())):
        with scope:
            model = _dense(keras, OwnStep)
            model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
        model.fit(data, epochs=2, verbose=0)
        found[name] = model.layers[-1].get_weights()[0]
    return found


def _or_batch_size(y: Any) -> Any:
    return y.shape[0] or 12


def _unpacked(y: Any) -> Any:
    rows, _ = y.shape.as_list()
    return rows if rows else 12


def _needed(y: Any) -> Any:
    return int(y.shape[0])


def _either(y: Any) -> Any:
    [rows, _] = y.shape
    return tf.shape(y)[0] if rows is None else rows


SIZES = {"or": _or_batch_size, "unpacked": _unpacked, "needed": _needed, "either": _either}


def sizes_from_shapes(ctx: Any) -> dict[str, Any]:
    """Trains by losses that read the number of rows from a shape; returns weights and shown numbers."""
    x, y = _examples(24)
    known = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)
    unknown = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
    found: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    for (name, rows_of), is_known in itertools.product(SIZES.items(), (True, False)):
        if name == "needed" and not (is_known and 12 % ctx.strategy.num_replicas_in_sync == 0):
            continue

        def loss(y_true: Any, y_pred: Any, rows_of: Any = rows_of) -> Any:
            return tf.reduce_sum(tf.square(y_true - y_pred)) / tf.cast(rows_of(y_true), tf.float32)

        class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
            def train_step(self, data: Any, loss: Any = loss) -> Any:
                x, y = data
                with tf.GradientTape() as tape:
                    value = loss(y, self(x, training=True))
                weights = self.trainable_variables
                self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
                return {"loss": value}

            def test_step(self, data: Any, loss: Any = loss) -> Any:
                return {"loss": loss(data[1], self(data[0], training=False))}

        data = known if is_known else unknown
        for kind in ("loss", "step", "loop"):
            forget_notes(ctx)
            with ctx.strategy.scope():
                model = _dense(keras, OwnStep if kind == "step" else keras.Model)
                model.compile(keras.optimizers.SGD(0.1), loss)
                optimizer = keras.optimizers.SGD(0.1)
                optimizer.build(model.trainable_variables)
            shown: list[float] = []
            if kind == "loop":
                shown.append(
                    ctx.train_steps(_own_loop(model, optimizer, loss), data.repeat(), num_steps=3)["loss"]
                )
            else:
                history = model.fit(data, epochs=2, verbose=0).history
                shown += history.get("loss", [])
                shown.append(float(np.ravel(model.evaluate(data, verbose=0))[-1]))
            case = f"{name}, {kind}, {'known' if is_known else 'unknown'}"
            found[case] = np.concatenate([flat(model), shown])
            notes[case] = notes_of(ctx)
    return {**found, "notes": notes}


def _own_loop(model: Any, optimizer: Any, loss: Any) -> Any:
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        return {"loss": value}

    return step
