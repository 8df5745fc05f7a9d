"""Runs a random program in a context: raydist's, or `bare.Bare`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz import loops
from tests.fuzz.data import arrays, class_weight, training_data, validation_data
from tests.fuzz.models import compiled
from tests.fuzz.program import KEEP, Program, program_of
from tests.programs.outcome import Outcome, outcome

keras = tf.keras


def train_function(name: str) -> Any:
    """Returns the train function of a program's name, for tests.programs.in_task."""

    def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
        return (
            loops.run(loops.loop_of(name), ctx)
            if name.startswith(loops.PREFIX)
            else run(program_of(name), ctx)
        )

    return train


def run(program: Program, ctx: Any) -> Outcome:
    """Trains, does what comes after, and returns all that can be compared."""
    with floats(program.dtype):
        keras.utils.set_random_seed(program.seed)
        with ctx.strategy.scope():
            model = compiled(program)
        histories = [_fit(program, ctx, model)]
        values: dict[str, Any] = {}
        for number, action in enumerate(program.after):
            key = f"{number} {action}"
            if action == "fit":
                histories.append(_fit(program, ctx, model))
            elif action == "evaluate":
                values |= {f"{key} {name}": [value] for name, value in _evaluate(program, ctx, model).items()}
            elif action == "predict":
                values[key] = _flat(_predict(program, ctx, model))
            elif action == "batch":
                values |= {f"{key} {name}": [one] for name, one in _on_batch(program, model).items()}
            else:
                model = _reloaded(program, ctx, model)
        for number, history in enumerate(histories):
            values |= {f"fit {number} {name}": one for name, one in history.history.items()}
        values.pop("lr", None)
        return outcome(values, models=[model])


def _fit(program: Program, ctx: Any, model: Any) -> Any:
    data = training_data(program)
    options = {**validation_data(program), "epochs": program.epochs, "callbacks": _callbacks(program)}
    if (weight := class_weight(program)) is not None and program.data == "arrays":
        options["class_weight"] = weight
    if program.steps_per_epoch:
        data["steps_per_epoch"] = program.steps_per_epoch
    if program.call == "model.fit":
        return model.fit(**data, **options, verbose=0)
    return ctx.fit(model, data.pop("x"), data.pop("y", None), **data, **options)


def _evaluate(program: Program, ctx: Any, model: Any) -> dict[str, float]:
    x, y, _ = arrays(program, 23, salt=2)
    if program.call == "model.fit":
        done: dict[str, float] = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
        return done

    def data() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    return dict(ctx.evaluate(model, data if program.is_shared else data()))


def _predict(program: Program, ctx: Any, model: Any) -> Any:
    x, _, _ = arrays(program, 21, salt=3)
    if program.call == "model.fit":
        return model.predict(x, batch_size=8, verbose=0)
    return ctx.predict(model, tf.data.Dataset.from_tensor_slices(x).batch(8))


def _on_batch(program: Program, model: Any) -> dict[str, float]:
    x, y, _ = arrays(program, 8, salt=4)
    model.reset_metrics()  # of the training before
    done: dict[str, float] = model.train_on_batch(x, y, return_dict=True)
    return done


def _reloaded(program: Program, ctx: Any, model: Any) -> Any:
    """Returns another model with the weights, which were in a file meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.weights.h5"))
        model.save_weights(file)
        with ctx.strategy.scope():
            other = compiled(program)
            other(_some_inputs(program))
            other.load_weights(file)
    return other


def _some_inputs(program: Program) -> Any:
    x, _, _ = arrays(program, 2, salt=5)
    return tf.nest.map_structure(tf.convert_to_tensor, x)


def _callbacks(program: Program) -> list[Any]:
    monitor = "loss" if program.validation == KEEP else "val_loss"
    has_schedule = program.schedule != KEEP and program.optimizer != "nadam"
    made = {
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor, factor=0.5, patience=0, min_delta=1.0),
        "rate": lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (epoch + 1)),
        "stopping": lambda: keras.callbacks.EarlyStopping(monitor, patience=0, min_delta=0.5),
        "batches": lambda: _Batches(),
    }
    return [made[name]() for name in program.callbacks if not (has_schedule and name in ("plateau", "rate"))]


class _Batches(keras.callbacks.Callback):  # type: ignore[misc]
    """Watches batches, which makes each of them a call of its own."""

    num_batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.num_batches += 1


def _flat(predictions: Any) -> np.ndarray:
    return np.concatenate([np.asarray(one).reshape(-1) for one in tf.nest.flatten(predictions)])


@contextmanager
def floats(dtype: str) -> Iterator[None]:
    before = keras.backend.floatx()
    _set_floats(dtype)
    try:
        yield
    finally:
        _set_floats(before)


def _set_floats(dtype: str) -> None:
    keras.backend.set_floatx(dtype)
    keras.mixed_precision.set_global_policy(dtype)  # Keras keeps the one that it has used
