"""Train functions on plain `tf.data` pipelines whose maps each worker runs on its own rows alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.in_tasks import Crashed, crash, flat
from tests.support.inside import notes_of, progress_of, run_of
from tests.support.late import LateModule
from tests.support.train_functions import bare_step, examples, made

tf = LateModule("tensorflow")

FILES = 3


def write_records(folder: Path, count: int) -> None:
    """Writes text files with an example in each line."""
    x, y = examples(count)
    for number, indices in enumerate(np.array_split(np.arange(count), FILES)):
        with (folder / f"{number}.txt").open("w") as file:
            for index in indices:
                file.write(",".join(f"{value:.7g}" for value in [*x[index], y[index]]) + "\n")


def _lines(folder: str) -> Any:
    files = tf.data.Dataset.from_tensor_slices(sorted(str(path) for path in Path(folder).glob("*.txt")))
    return files.interleave(tf.data.TextLineDataset, cycle_length=2, num_parallel_calls=2)


def _parse(line: Any) -> Any:
    values = tf.strings.to_number(tf.strings.split(line, ","))
    return tf.ensure_shape(values[:6], [6]), tf.cast(values[6], tf.int64)


# Each takes the lines.
Pipeline = Callable[[Any], Any]


def _half(x: Any, y: Any) -> Any:
    return x / 2, y


PIPELINES: dict[str, Pipeline] = {
    "a last batch of one": lambda lines: lines.take(97).map(_parse).batch(32),
    "shuffled": lambda lines: (
        lines.shuffle(50, seed=5).map(_parse, num_parallel_calls=2).batch(31).map(_half).prefetch(2)
    ),
    "of one size": lambda lines: lines.map(_parse).batch(30, drop_remainder=True).map(_half),
    "uneven and of one size": lambda lines: lines.map(_parse).batch(31, drop_remainder=True),
    "repeated": lambda lines: lines.shuffle(50, seed=5).repeat().map(_parse).batch(32),
}
STEPS = {"repeated": 5}


def trained(ctx: Any, *, folder: str, names: list[str]) -> dict[str, Any]:
    """Trains a new model by `ctx.fit` on each of these pipelines."""
    results: dict[str, Any] = {}
    for name in names:
        make = PIPELINES[name]
        model = _model(ctx)
        history = ctx.fit(
            model,
            make(_lines(folder)),
            epochs=2,
            steps_per_epoch=STEPS.get(name),
            validation_data=_validation(folder) if name == "shuffled" else None,
            class_weight={0: 1.0, 1: 5.0, 2: 0.2} if name == "of one size" else None,
        )
        results[f"{name}: weights"] = flat(model)
        results |= {f"{name}: {key}": np.array(values) for key, values in history.history.items()}
    return {**results, "notes": notes_of(ctx)}


def used_otherwise(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Uses pipelines in `model.fit`, in a loop of steps, and without training."""
    model = _model(ctx)
    model.fit(PIPELINES["shuffled"](_lines(folder)), epochs=2, verbose=0, validation_data=_validation(folder))
    return {
        "model.fit": flat(model),
        "loop": _loop(ctx, PIPELINES["shuffled"](_lines(folder))),
        "evaluated": np.array(list(ctx.evaluate(model, _validation(folder)).values())),
        "predicted": ctx.predict(model, _validation(folder).map(lambda x, y: x)),
        "notes": notes_of(ctx),
    }


def noted(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Trains on a pipeline that shuffles after its map, with validation data that are like it."""
    data = _lines(folder).map(_parse).shuffle(20, seed=3).batch(32)
    model = _model(ctx)
    ctx.fit(model, data, epochs=2, validation_data=data)
    return {"weights": flat(model), "notes": notes_of(ctx)}


def resumed(
    ctx: Any, *, folder: str, steps_per_epoch: int | None = None, stop_after: int | None = None
) -> dict[str, Any]:
    """Trains 3 epochs of 4 steps; `stop_after` raises after that many steps, as a crash would."""
    model, crashes = _model(ctx), crash(tf.keras, "on_train_batch_begin", stop_after)
    try:
        data = PIPELINES["shuffled"](_lines(folder))
        data = data if steps_per_epoch is None else data.repeat()
        ctx.fit(model, data, epochs=3, steps_per_epoch=steps_per_epoch, callbacks=[crashes])
    except Crashed:
        run_of(ctx).checkpoints.finish()
    return {"weights": flat(model), "restored_step": progress_of(ctx).status().restored_step}


_model = functools.partial(made, optimizer="sgd", metrics=("accuracy",))


def _validation(folder: str) -> Any:
    return _lines(folder).map(_parse).batch(24)


def _loop(ctx: Any, data: Any) -> np.ndarray:

    model = _model(ctx)
    with ctx.strategy.scope():
        model.optimizer.build(model.trainable_variables)

    ctx.train_steps(bare_step(model, global_batch_size=31), data, num_steps=9, steps_per_call=2)
    return flat(model)


def passes_from_each_batch(ctx: Any) -> dict[str, Any]:
    """Returns where a loop begins with other data than by reading all, and how many batches each drops."""
    from raydist import tf_private
    from raydist.training.input import shuffle_seeds

    numbers = tf.data.Dataset.range(20)
    pipelines: dict[str, Callable[[], Any]] = {
        "in order": lambda: numbers.map(lambda one: 2 * one),
        "shuffled": lambda: numbers.shuffle(20, seed=1).map(lambda one: 2 * one),
        "shuffled twice": lambda: numbers.shuffle(20, seed=1).shuffle(5, seed=2),
        "cached": lambda: numbers.cache().shuffle(20, seed=1),
        "cached in order": lambda: numbers.shuffle(20, seed=1).cache(),
        "random": lambda: tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).take(20),
        "drawn": lambda: numbers.map(lambda one: one + tf.random.uniform([], 0, 9, tf.int64, seed=1)),
        "of unknown length": lambda: numbers.shuffle(20, seed=1).filter(lambda one: one < 16),
        "endless": lambda: numbers.shuffle(20, seed=1).repeat(),
    }

    def of_loop(name: str, begin: Callable[[Any, int], Any], first: int) -> Any:
        tf.random.set_seed(0)
        return begin(pipelines[name]().batch(4), first)

    def batches(name: str, begin: Callable[[Any, int], Any], first: int) -> list[list[int]]:
        return [one.tolist() for one in of_loop(name, begin, first).take(9).as_numpy_iterator()]

    def dropping(data: Any, first: int) -> Any:
        return data.repeat().skip(first)

    passes_from = shuffle_seeds.passes_from
    return {
        "other": [
            (name, first)
            for name in pipelines
            for first in (0, 3, 5, 12)
            if batches(name, passes_from, first) != batches(name, dropping, first)
        ],
        "dropped": {
            name: tf_private.parameter(of_loop(name, passes_from, 12), "count") for name in pipelines
        },
    }
