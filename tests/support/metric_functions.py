"""Metrics of users' own, of which some cannot be added up over replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.checks import metric_check
from tests.support.inside import notes_of

keras = tf.keras


class Largest(keras.metrics.Metric):
    """The largest error so far."""

    def __init__(self, name: str = "largest", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.largest = self.add_weight(name="largest", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.largest

    def reset_state(self) -> None:
        self.largest.assign(0.0)


class Spread(keras.metrics.Metric):
    """The standard deviation of the errors, from sums."""

    def __init__(self, name: str = "spread", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.sums = self.add_weight(name="sums", shape=(3,), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = tf.reshape(y_true - y_pred, [-1])
        parts = [tf.cast(tf.size(error), error.dtype), tf.reduce_sum(error), tf.reduce_sum(error**2)]
        self.sums.assign_add(tf.stack(parts))

    def result(self) -> Any:
        count, total, squares = tf.unstack(tf.convert_to_tensor(self.sums))
        return tf.math.divide_no_nan(squares, count) - tf.math.divide_no_nan(total, count) ** 2

    def reset_state(self) -> None:
        self.sums.assign(tf.zeros(3))


class Halves(Spread):
    """Wants batches of 8, so it cannot be computed of a part."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.reshape(y_true, [-1, 4]), tf.reshape(y_pred, [-1, 4]))


def each(y_true: Any, y_pred: Any) -> Any:
    return tf.abs(y_true - y_pred)[:, 0]


def mean_of_batch(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred))


def root_of_batch(y_true: Any, y_pred: Any) -> Any:
    return tf.sqrt(tf.reduce_mean((y_true - y_pred) ** 2))


class OwnStep(keras.Model):
    """Updates its metrics itself, one of them by a number of the whole batch."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.largest, self.spread = Largest(), Spread()

    @property
    def metrics(self) -> list[Any]:
        return [self.largest, self.spread]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean((y - y_pred) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.largest.update_state(y, y_pred)
        self.spread.update_state(y, y_pred)
        return {"loss": loss, **{one.name: one.result() for one in self.metrics}}


def own_metrics(ctx: Any, *, how: str = "fit", batch_size: int = 8) -> dict[str, Any]:
    """Trains or evaluates with them; returns the values and what was noted of metrics."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(3 * batch_size, 3)).astype("float32")

    def read() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return rows.batch(batch_size, drop_remainder=how == "parts")

    with ctx.strategy.scope():
        inputs = keras.layers.Input((3,))
        make = OwnStep if how == "own step" else keras.Model
        model = make(inputs, keras.layers.Dense(1)(inputs))
        metrics = [Largest(), Spread(), each, mean_of_batch, root_of_batch]
        if hasattr(keras.losses, "Dice"):
            metrics.append(keras.losses.Dice(name="overlap"))
        if how == "parts":
            metrics = [Halves(name="halves")]
        if how == "own step":
            model.compile(keras.optimizers.SGD(0.01))
        else:
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=metrics)
    if how == "evaluate":
        values = ctx.evaluate(model, read)
    else:
        values = {name: one[-1] for name, one in ctx.fit(model, read(), epochs=2).history.items()}
    notes = [one for one in notes_of(ctx) if "metric" in one]
    return {"values": {name: float(value) for name, value in values.items()}, "notes": notes}


class Counted(keras.metrics.Metric):
    """The number of examples; its result is its variable."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.cast(tf.size(y_true), self.total.dtype))

    def result(self) -> Any:
        return self.total


class CountedInDict(Counted):
    def result(self) -> Any:
        return {"in_dict": self.total}


class CountedTwice(Counted):
    def result(self) -> Any:
        return self.total * 2.0


class Renamed(keras.Model):
    """Shows a count by another name than the metric's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counted = Counted("counted")

    @property
    def metrics(self) -> list[Any]:
        return [self.counted]

    def train_step(self, data: Any) -> dict[str, Any]:
        self.counted.update_state(data[1], self(data[0], training=True))
        return {"renamed": self.counted.result()}

    test_step = train_step


def counts(ctx: Any) -> dict[str, Any]:
    """Trains on 32 examples, and validates and evaluates on 40; returns what metrics have counted."""
    x = np.arange(40, dtype="float32")[:, None] / 40

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen = {name: float(logs[name]) for name in logs if name != "loss"}

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, x)).batch(8)

    result: dict[str, Any] = {"last batch": {}, "history": {}, "evaluated": {}}
    for make in (keras.Model, Renamed):
        watch = Watch()
        with ctx.strategy.scope():
            inputs = keras.layers.Input((1,))
            model = make(inputs, keras.layers.Dense(1)(inputs))
            if make is Renamed:
                model.compile("sgd")
            else:
                counted = [Counted("count"), CountedInDict("in_a_dict"), CountedTwice("twice")]
                model.compile("sgd", "mse", metrics=counted)
        history = ctx.fit(
            model,
            data if ctx.coordinator is not None else data().take(4),
            epochs=2,
            steps_per_epoch=4,
            validation_data=data if ctx.coordinator is not None else data(),
            callbacks=[watch],
            verbose=0,
        ).history
        result["last batch"] |= watch.seen
        result["history"] |= {name: one[-1] for name, one in history.items() if "loss" not in name}
        evaluated = ctx.evaluate(model, data)
        result["evaluated"] |= {name: one for name, one in evaluated.items() if "loss" not in name}
    return result


def summed_over_replicas(ctx: Any) -> dict[str, Any]:
    """Returns what the variables of a mean are after a closure whose replicas have a value each."""
    metric, strategy = keras.metrics.Mean(), ctx.strategy
    slots = metric_check.slots_of(metric)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(3.0 + context.replica_id_in_sync_group)
    )

    @tf.function
    def closure() -> Any:
        with metric_check.swapped(slots, [slot.zeros() for slot in slots]) as cells:
            strategy.run(metric.update_state, args=(values,))
            return [cell.total() for cell in cells]

    return {"totals": [float(one) for one in closure()]}
