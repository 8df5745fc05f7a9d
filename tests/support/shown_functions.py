"""Models that show sums, roots or maxima of a batch, in the ways that a user's own code may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inside import forget_notes, notes_of

keras = tf.keras


def shown(ctx: Any, *, names: Sequence[str]) -> dict[str, Any]:
    """Returns by program what `fit` or `evaluate` shows, or the error, and what the run notes."""
    values: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    for name in names:
        forget_notes(ctx)
        try:
            found = PROGRAMS[name](ctx)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        values[name] = found
        notes[name] = notes_of(ctx)
    return {"values": values, "notes": notes}


def batches(*, salt: int = 0, size: int = 8) -> tf.data.Dataset:
    rng = np.random.default_rng([7, salt])
    x, y = rng.normal(size=(21, 4)).astype("float32"), rng.normal(size=(21, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


def made(ctx: Any, make: Any = keras.Model, *, layers: Any = (), **compiled: Any) -> Any:
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(3, activation="tanh")(inputs)
        for layer in layers:
            hidden = layer()(hidden)
        model = make(inputs, keras.layers.Dense(1)(hidden))
        if not compiled.pop("outside", False):
            model.compile(keras.optimizers.SGD(0.05), **{"loss": "mse", **compiled})
    return model


def fitted(model: Any) -> dict[str, list[float]]:
    history = model.fit(batches(), epochs=2, verbose=0, validation_data=batches(salt=1)).history
    return {name: [float(one) for one in values] for name, values in history.items()}


class WithMetrics(keras.Model):  # type: ignore[misc]
    """Has a `Mean` for each of `names`."""

    names: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.means = {name: keras.metrics.Mean(name=name) for name in self.names}

    @property
    def metrics(self) -> list[Any]:
        return [*super().metrics, *self.means.values()]


class SumInLoss(WithMetrics):
    names = ("squares",)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **more: Any
    ) -> Any:
        self.means["squares"].update_state(tf.reduce_sum(tf.square(y - y_pred)))
        return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)


class SumInTestStep(WithMetrics):
    names = ("squares",)

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.means["squares"].update_state(tf.reduce_sum(tf.square(y - self(x, training=False))))
        return {"squares": self.means["squares"].result()}


class OwnStep(WithMetrics):
    """Gives `Mean`s the root of a batch's loss and the largest error."""

    names = ("root", "largest")

    def train_step(self, data: Any) -> Any:
        error, loss = trained(self, *data)
        self.means["root"].update_state(tf.sqrt(loss))
        self.means["largest"].update_state(tf.reduce_max(error))
        return {name: mean.result() for name, mean in self.means.items()}


class ShowsMetrics(WithMetrics):
    """Shows its metrics by names of its own, as keras-io's VAE does, and what it works out from one."""

    names = ("total",)

    def train_step(self, data: Any) -> Any:
        _, loss = trained(self, *data)
        return self.logs(loss)

    def test_step(self, data: Any) -> Any:
        x, y = data
        return self.logs(tf.reduce_mean(tf.square(y - self(x, training=False))))

    def logs(self, loss: Any) -> Any:
        self.means["total"].update_state(loss)
        return {"loss": self.means["total"].result()}


class WorksOut(ShowsMetrics):
    def logs(self, loss: Any) -> Any:
        return {**super().logs(loss), "perplexity": tf.exp(self.means["total"].result())}


class ReturnsSum(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        error, loss = trained(self, *data)
        return {"own": loss, "sum_of_errors": tf.reduce_sum(error)}


def trained(model: Any, x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies the gradients of a batch; returns its squared errors and their mean, the loss."""
    with tf.GradientTape() as tape:
        error = tf.square(y - model(x, training=True))
        loss = tf.reduce_mean(error)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return error, loss


class SumInLayer(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean(name="activity")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(tf.reduce_sum(tf.square(inputs)))
        return inputs


class MeanInLayer(SumInLayer):
    def call(self, inputs: Any) -> Any:
        self.mean.update_state(tf.reduce_mean(inputs))
        return inputs


def compiled_outside(ctx: Any) -> Any:
    model = made(ctx, outside=True)
    model.compile("adam", loss="mse", metrics=["mae"])
    return fitted(model)


def balanced(y_true: Any, y_pred: Any) -> Any:
    return tf.sign(y_true[:, 0])


def zero_metric(ctx: Any) -> Any:
    """A metric of the whole data that is 0, and of each replica's part is not."""
    model = made(ctx, metrics=[balanced])
    y = np.array([[1.0], [1.0], [-1.0], [-1.0], [0.0]], "float32")
    history = model.fit(tf.data.Dataset.from_tensor_slices((np.eye(5, 4), y)).batch(5), epochs=2, verbose=0)
    return {name: [float(one) for one in values] for name, values in history.history.items()}


def evaluated(ctx: Any) -> Any:
    model = made(ctx, SumInTestStep)
    small = model.evaluate(batches(size=3), verbose=0, return_dict=True)
    large = model.evaluate(batches(), verbose=0, return_dict=True)
    return {"small": [float(small["squares"])], "large": [float(large["squares"])]}


def summed(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_sum(tf.square(tf.cast(y_true, tf.float32) - y_pred))


def loss_of_sums(ctx: Any) -> Any:
    """A loss that is a sum over the batch, evaluated before any training, and with uneven parts."""
    model = made(ctx, loss=summed)
    first = model.evaluate(batches(size=3), verbose=0)
    return {**fitted(model), "first": [float(np.ravel(first)[0])]}


def losses_of_examples(ctx: Any) -> Any:
    """Losses with reduction="none" of one output, and of two."""
    loss = keras.losses.MeanSquaredError(reduction="none")
    one = made(ctx, loss=loss)
    with ctx.strategy.scope():
        two = keras.Model(one.inputs, [one.output, keras.layers.Dense(1)(one.layers[1].output)])
        two.compile(keras.optimizers.SGD(0.05), [loss, loss])
    data = batches().map(lambda x, y: (x, (y, 2 * y)))
    history = two.fit(data, epochs=2, verbose=0, validation_data=data.take(1)).history
    return {**fitted(one), **{f"{number} of two": one for number, one in enumerate(history.values())}}


def metric_from_outside(ctx: Any) -> Any:
    outside = keras.metrics.MeanAbsoluteError(name="outside")
    return fitted(made(ctx, metrics=[outside]))


PROGRAMS = {
    "compiled outside": compiled_outside,
    "sum in compute_loss": lambda ctx: fitted(made(ctx, SumInLoss)),
    "evaluated": evaluated,
    "zero": zero_metric,
    "loss of sums": loss_of_sums,
    "losses of examples": losses_of_examples,
    "sum in a layer": lambda ctx: fitted(made(ctx, layers=[SumInLayer])),
    "normed": lambda ctx: fitted(made(ctx, layers=[keras.layers.BatchNormalization])),
    "normed, mean in a layer": lambda ctx: fitted(
        made(ctx, layers=[keras.layers.BatchNormalization, MeanInLayer])
    ),
    "own step": lambda ctx: fitted(made(ctx, OwnStep)),
    "renamed": lambda ctx: fitted(made(ctx, ShowsMetrics)),
    "worked out": lambda ctx: fitted(made(ctx, WorksOut)),
    "returned": lambda ctx: fitted(made(ctx, ReturnsSum)),
    "metric from outside": metric_from_outside,
}


def on_servers(ctx: Any) -> dict[str, Any]:
    """Returns what `ctx.fit` shows of two models of `ShowsMetrics`, and what the run notes."""
    found: dict[str, Any] = {}
    for make in (ShowsMetrics, WorksOut):
        model = made(ctx, make)
        history = ctx.fit(
            model, lambda: batches(), epochs=2, steps_per_epoch=3, validation_data=lambda: batches(salt=1)
        )
        shown = history.history.items()
        found[make.__name__] = {name: [float(one) for one in values] for name, values in shown}
    return {"values": found, "notes": notes_of(ctx)}
