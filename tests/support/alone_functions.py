"""Calls that one worker makes alone, and what all workers do together."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.runtime.task.stacks import Standing
from raydist.training.cluster import collective_calls
from tests.support.inside import progress_of

PLACES = (
    *("before", "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_epoch_end", "on_train_end", "after"),
)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def made_model(ctx: Any) -> Any:
    keras = tf.keras
    with ctx.strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def calls_of(ctx: Any, model: Any) -> Mapping[str, Callable[[], object]]:
    """Returns the calls that all workers make together, by name."""
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def step(batch: Any) -> Any:
        return {"mean": tf.reduce_mean(batch[0])}

    return {
        "model.fit": lambda: model.fit(x, y, batch_size=8, verbose=0),
        "model.evaluate": lambda: model.evaluate(x, y, batch_size=8, verbose=0),
        "model.predict": lambda: model.predict(x, batch_size=8, verbose=0),
        "model.train_on_batch": lambda: model.train_on_batch(x[:8], y[:8]),
        "model.test_on_batch": lambda: model.test_on_batch(x[:8], y[:8]),
        "model.predict_on_batch": lambda: model.predict_on_batch(x[:8]),
        "ctx.fit": lambda: ctx.fit(model, dataset, epochs=1, verbose=0),
        "ctx.evaluate": lambda: ctx.evaluate(model, dataset, verbose=0),
        "ctx.predict": lambda: ctx.predict(model, x),
        "ctx.train_steps": lambda: ctx.train_steps(step, dataset.repeat(), num_steps=2),
        "ctx.save": lambda: ctx.save(step=1, model=model),
        "ctx.restore": lambda: ctx.restore(model=model),
    }


def own_collectives_of(ctx: Any) -> Mapping[str, Callable[[], object]]:
    """Returns collectives that are no calls of raydist's or Keras's, by name."""
    strategy = ctx.strategy

    @tf.function
    def step() -> Any:
        own = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
        return strategy.experimental_local_results(own)[0]

    return {
        "reduce": lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None),
        "gather": lambda: strategy.gather(strategy.run(lambda: tf.constant([1.0])), axis=0),
        "own step": step,
        "variable": lambda: _variable_of(strategy),
    }


def _variable_of(strategy: Any) -> Any:
    with strategy.scope():
        return tf.Variable(1.0)


def alone(ctx: Any, *, call: str, place: str, folder: str) -> None:
    """Has the chief make a call in one place of a training; each worker writes where it stands."""
    threading.Thread(target=_write_standing, args=(ctx, Path(folder)), daemon=True).start()
    model, (x, y) = made_model(ctx), data()
    calls = {**calls_of(ctx, model), **own_collectives_of(ctx)}

    def make(at: str) -> None:
        if ctx.is_chief and at == place:
            calls[call]()

    hooks = {name: lambda self, *_, at=name, **__: make(at) for name in PLACES if name.startswith("on_")}
    callback = type("Alone", (tf.keras.callbacks.Callback,), hooks)()
    make("before")
    ctx.fit(
        model,
        tf.data.Dataset.from_tensor_slices((x, y)).batch(8),
        validation_data=(x, y),
        epochs=2,
        verbose=0,
        callbacks=[callback],
    )
    make("after")
    # As a session does; the process stays, as a run's do until all have ended.
    collective_calls.leave()
    while True:
        time.sleep(1.0)


def _write_standing(ctx: Any, folder: Path) -> None:
    """Writes what the status thread of a task would tell."""
    standing, file = Standing(), folder / f"{ctx.task.path_name}.json"
    while True:
        found = standing.located(progress_of(ctx).collective)
        if found is not None:
            text = json.dumps({**dataclasses.asdict(found), "state": found.state.name})
            part = file.with_suffix(".part")
            part.write_text(text)
            os.replace(part, file)
        time.sleep(0.1)


def counted(ctx: Any) -> dict[str, Any]:
    """Returns how many collectives have begun after each of many things that all workers do."""
    progress, counts = progress_of(ctx), {}

    def begun() -> int:
        return 0 if progress.collective is None else progress.collective.number

    model, (x, y) = made_model(ctx), data()
    counts["model"] = begun()
    for name, call in calls_of(ctx, model).items():
        call()
        counts[name] = begun()
    strategy = ctx.strategy
    with strategy.scope():
        variable = tf.Variable(0.0)

    @tf.function
    def own_step(batch: Any) -> Any:
        def step(part: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = variable * tf.reduce_sum(part[0])
            total = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, variable))
            variable.assign_sub(0.01 * total)
            return loss

        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    for batch in strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    ):
        own_step(batch)
    counts["own loop"] = begun()
    values = strategy.run(lambda: tf.constant(1.0))
    strategy.reduce("SUM", values, axis=None)
    counts["reduce"] = begun()
    strategy.gather(strategy.run(lambda: tf.constant([1.0])), axis=0)
    counts["gather"] = begun()
    local = tf.function(lambda: tf.constant(1.0))
    local()
    counts["local function"] = begun()
    return counts


def read_alone(ctx: Any) -> dict[str, Any]:
    """Has the chief read a model alone after each epoch and at the end; returns what both read last."""
    model, (x, y) = made_model(ctx), data()
    alone: dict[str, list[Any]] = {}
    begun: list[str] = []

    def read() -> None:
        for name, function in readings(ctx, model).items():
            before = progress_of(ctx).collective
            alone.setdefault(name, []).append(function())
            if progress_of(ctx).collective != before:
                begun.append(name)

    def at_end(self: Any, *_: Any, **__: Any) -> None:
        if ctx.is_chief:
            read()

    reader = type("Reader", (tf.keras.callbacks.Callback,), {"on_epoch_end": at_end})()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.fit(dataset, validation_data=(x, y), epochs=2, verbose=0, callbacks=[reader])
    model.evaluate(x[:5], y[:5], verbose=0)
    model.train_on_batch(x[:7], y[:7])
    if ctx.is_chief:
        read()
    after = {name: function() for name, function in readings(ctx, model).items()}
    return {"alone": alone, "after": after, "begun": begun}


def readings(ctx: Any, model: Any) -> Mapping[str, Callable[[], Any]]:
    """Returns what reads a model in many ways, by name; each shows numbers."""
    folder = Path(tempfile.mkdtemp())

    def numbers(values: Any) -> list[float]:
        return [float(one) for value in values for one in np.ravel(value)]

    def arrays_in(content: bytes) -> list[float]:
        found: list[Any] = []
        with h5py.File(io.BytesIO(content)) as file:
            file.visititems(lambda _, one: found.append(one[()]) if isinstance(one, h5py.Dataset) else None)
        return numbers(found)

    def saved() -> list[float]:
        model.save(folder / "model.keras")  # in `fit` a model that is loaded would be one of all workers
        with zipfile.ZipFile(folder / "model.keras") as file:
            return arrays_in(file.read("model.weights.h5"))

    def saved_weights() -> list[float]:
        model.save_weights(folder / "model.weights.h5")
        return arrays_in((folder / "model.weights.h5").read_bytes())

    def checkpoint() -> list[float]:
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "checkpoint"))
        values = [tf.train.load_variable(path, name) for name, _ in sorted(tf.train.list_variables(path))]
        return numbers(one for one in values if isinstance(one, np.ndarray) and one.dtype.kind == "f")

    def results() -> list[float]:
        found = [metric.result() for metric in model.metrics]
        return numbers(one for result in found for one in tf.nest.flatten(result))

    optimizer = model.optimizer.variables
    return {
        "weights": lambda: numbers(model.get_weights()),
        "metrics": results,
        "optimizer": lambda: numbers(
            one.numpy() for one in (optimizer() if callable(optimizer) else optimizer)
        ),
        "saved": saved,
        "saved_weights": saved_weights,
        "checkpoint": checkpoint,
        "shown": lambda: [float(bool(repr(model.metrics) + repr(model.variables)))],
    }


def changed_after(ctx: Any) -> dict[str, Any]:
    """Returns what a metric shows after each of the ways in which it changes outside of raydist's calls."""
    model, (x, y), strategy = made_model(ctx), data(), ctx.strategy
    with strategy.scope():
        added = tf.keras.metrics.Sum(name="added")
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[])
    model.added = added
    shown = {}

    @tf.function
    def add(number: Any) -> None:
        strategy.run(lambda: added.update_state(number))

    def show(name: str) -> None:
        shown[name] = float(added.result())

    model.evaluate(x, y, verbose=0)
    show("evaluated")  # kept from here on
    add(tf.constant(2.0))
    show("own function")
    # Of the chief alone: the other worker's part stays what it was.
    add(tf.constant(1.0 if ctx.is_chief else 0.0))
    show("of one worker")
    added.reset_state()
    show("reset")
    model.evaluate(x, y, verbose=0)
    add(tf.constant(3.0))
    [variable] = tf_private.parts_of(added.variables[0])
    path = tf.train.Checkpoint(total=variable).write(f"{tempfile.mkdtemp()}/checkpoint")
    added.reset_state()
    tf.train.Checkpoint(total=variable).restore(path)
    show("restored")
    return shown
