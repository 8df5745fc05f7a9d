"""Train functions that call plain `fit`, without ctx.callbacks()."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.outcome.status import FailureKind, TaskFailure
from raydist.training.stepping.packing import StepPacker
from tests.support.in_tasks import Crashed, crash, flat, refusal
from tests.support.inside import forget_notes, notes_of, progress_of
from tests.support.train_functions import bare_step, dense_model, examples, made

keras = tf.keras


def fits_in_a_row(ctx: Any) -> dict[str, Any]:
    """Two plain fits, with a fit inside of the second, then train_steps and ctx.fit."""
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    status = progress_of(ctx).status
    steps, losses = [], []

    class Inner(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            other.fit(data, verbose=0)

    with ctx.strategy.scope():
        model, other = (dense_model(keras, "adam", metrics=("accuracy",)) for _ in range(2))
        model.optimizer.build(model.trainable_variables)

    losses += model.fit(data, epochs=2, validation_data=data, verbose=0).history["loss"]
    first = status()
    steps.append(first.step)
    unknown = data.filter(lambda *batch: True)
    losses += model.fit(unknown, initial_epoch=1, epochs=3, verbose=0, callbacks=[Inner()]).history["loss"]
    steps.append(status().step)
    before = flat(model)

    ctx.train_steps(bare_step(model, global_batch_size=16), data, num_steps=5)
    steps.append(status().step)
    after = flat(model)
    ctx.fit(model, data, epochs=1)
    steps.append(status().step)
    return {
        "steps": steps,
        "notes": list(status().notes),
        "trainings": [[one.kind, one.number, one.step] for one in status().trainings],
        "first": [first.epoch, first.num_epochs, first.num_steps, sorted(first.metrics), first.checkpoint],
        "awaits": status().num_steps - status().step,
        "has trained": bool(np.abs(after - before).max() > 1e-4),
        "losses": np.array(losses),
    }


def after_a_fit_with_callbacks(ctx: Any) -> dict[str, Any]:
    """A plain fit after one with ctx.callbacks()."""
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    status, steps = progress_of(ctx).status, []
    model = made(ctx, "adam")
    model.fit(data, epochs=2, verbose=0, callbacks=ctx.callbacks())
    steps.append(status().step)
    model.fit(data, epochs=1, verbose=0)
    steps.append(status().step)
    return {"steps": steps}


def packed(ctx: Any) -> dict[str, Any]:
    """Returns the largest number of steps that a call of a plain fit has had."""
    counts = []
    next_count = StepPacker.next_count

    def counting(self: StepPacker, left: int) -> int:
        counts.append(next_count(self, left))
        return counts[-1]

    StepPacker.next_count = counting  # type: ignore[method-assign]
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16, drop_remainder=True).repeat()
    model = made(ctx, "adam")
    before = progress_of(ctx).status().step
    model.fit(data, steps_per_epoch=400, verbose=0)
    return {"largest": max(counts), "steps": progress_of(ctx).status().step - before}


def on_parameter_server(ctx: Any) -> dict[str, Any]:
    model = made(ctx, "sgd", metrics=("accuracy",))
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16).repeat()
    model.fit(data, epochs=2, steps_per_epoch=10, verbose=0)
    status = progress_of(ctx).status()
    return {"steps": status.step, "metrics": sorted(status.metrics), "epoch": status.epoch}


def fails_before_its_first_step(ctx: Any) -> dict[str, Any]:
    """Returns the type of what a fit raises whose data the model cannot take."""
    model = made(ctx, "adam")
    error = refusal(model.fit, np.zeros((8, 5)), np.zeros(8), batch_size=4, verbose=0)
    return {"raised": error.partition(":")[0]}


def fails_after_a_fit(ctx: Any) -> dict[str, Any]:
    """A callback ends a fit; returns what is awaited then, and the step that a failure would name."""
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    model = made(ctx, "adam")
    before = progress_of(ctx).status().step
    with suppress(Crashed):
        model.fit(data, epochs=3, verbose=0, callbacks=[crash(tf.keras, "on_epoch_end", 0)])
    status = progress_of(ctx).status()
    failure = TaskFailure(task=ctx.task, kind=FailureKind.USER, error_type="RuntimeError", message="x")
    progress_of(ctx).failed(failure)
    failed = progress_of(ctx).status().failure
    return {"steps": status.step - before, "awaits": status.num_steps - status.step, "failed at": failed.step}


def fit_of_the_users_own(ctx: Any) -> dict[str, Any]:
    """Models in and outside of the strategy's scope, with callbacks that restore and without."""
    keras, status = tf.keras, progress_of(ctx).status
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)

    def told() -> list[str]:
        return [note for note in status().notes if "ctx.callbacks()" in note]

    with ctx.strategy.scope():
        inside = dense_model(keras, "adam")
    inside.fit(data, epochs=1, verbose=0, callbacks=ctx.callbacks())
    backup = keras.callbacks.BackupAndRestore(ctx.storage + "/backup")
    inside.fit(data, epochs=1, verbose=0, callbacks=[backup])
    before, step = told(), status().step
    outside = dense_model(keras, "adam")
    outside.fit(data, epochs=1, verbose=0)
    return {"before": before, "notes": told(), "steps": status().step - step}


def evaluates_only(ctx: Any) -> dict[str, Any]:
    model = dense_model(tf.keras, "adam")
    model.evaluate(tf.data.Dataset.from_tensor_slices(examples(64)).batch(16), verbose=0)
    return {}


def layers_of_the_users_own(ctx: Any) -> dict[str, Any]:
    """A plain fit of layers that draw random numbers, and that keep moving statistics."""

    class Noise(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, inputs: Any) -> Any:
            return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)

    class Centred(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="mean")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, axis=0))
            return inputs - self.mean

    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((6,)), Noise(), Centred(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    noted = len(progress_of(ctx).status().notes)
    model.fit(tf.data.Dataset.from_tensor_slices(examples(64)).batch(16), verbose=0)
    return {"notes": list(progress_of(ctx).status().notes[noted:])}


def shuffled_on(ctx: Any) -> dict[str, Any]:
    """Returns what is noted of two fits, on data of their own and on the same endless data."""
    told = {}
    for way in ("their own", "the same"):
        forget_notes(ctx)
        rows = tf.data.Dataset.from_tensor_slices(examples(32))
        shared = rows.shuffle(32, seed=1).repeat().batch(8)
        for _ in range(2):
            data = shared if way == "the same" else rows.shuffle(32, seed=1).repeat().batch(8)
            model = made(ctx, "sgd")
            model.fit(data, steps_per_epoch=4, epochs=1, verbose=0)
        told[way] = [note for note in notes_of(ctx) if "make a dataset for each training" in note]
    return told
