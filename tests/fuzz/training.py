"""Runs a random program in a context: raydist's, or `bare.Bare`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz import loops
from tests.fuzz.data import arrays, batches, class_weight, given, training_data, validation_data
from tests.fuzz.models import compile_model, compiled, has_own_layers, own_objects
from tests.fuzz.program import KEEP, OF_DATASETS, ORDINARY, Program, program_of
from tests.programs.outcome import Outcome, outcome

keras = tf.keras
LAMBDA_HOOK = "on_train_batch_end" if hasattr(keras, "ops") else "on_batch_end"


def train_function(name: str) -> Any:
    """Returns the train function of a program's name, for tests.programs.in_task."""

    def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
        return loops.run(loops.loop_of(name), ctx) if is_loop else run(program_of(name), ctx)

    is_loop = name.startswith(loops.PREFIX)
    train.is_seeded = is_loop or program_of(name).is_seeded  # type: ignore[attr-defined]
    return train


def run(program: Program, ctx: Any) -> Outcome:
    """Trains, does what comes after, and returns all that can be compared."""
    with floats(program.dtype):
        if program.is_seeded:
            keras.utils.set_random_seed(program.seed)
        with ctx.strategy.scope():
            model = compiled(program)
            if not program.is_seeded:
                _set_weights(program, model)
        logs = _Logs()
        histories: list[Any] = []
        values: dict[str, Any] = {}
        for number, action in enumerate((*program.before, "fit", *program.after)):
            key = f"{number} {action}"
            if action in BEFORE_A_FIT:
                if (change := BEFORE_A_FIT[action]) is not None:
                    change(program, ctx, model)
                histories.append(_fit(program, ctx, model, logs))
            elif action == "evaluate":
                values |= {f"{key} {name}": [value] for name, value in _evaluate(program, ctx, model).items()}
            elif action == "predict":
                values[key] = _flat(_predict(program, ctx, model))
            elif action == "predict_batch":
                values[key] = _flat(model.predict_on_batch(given(program, arrays(program, 9, salt=6)[0])))
            elif action in ("batch", "test_batch"):
                shown = _on_batch(program, model, is_test=action == "test_batch")
                values |= {f"{key} {name}": [one] for name, one in shown.items()}
            elif action == "whole":
                model = _reloaded_whole(program, ctx, model)
            else:
                model = _reloaded(program, ctx, model)
        for number, history in enumerate(histories):
            values |= {f"fit {number} {name}": one for name, one in history.history.items()}
        values.pop("lr", None)
        values |= {f"batch {name}": one for name, one in logs.values.items()}
        return outcome(values, models=[model], optimizers=[*getattr(model, "others", ())])


def _set_weights(program: Program, model: Any) -> None:
    """Gives a model weights of the program's own: those that it has were drawn without a seed."""
    rng = np.random.default_rng([program.seed, 7])
    model(_some_inputs(program))
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0.0, 0.4, size=variable.shape))


def _fit(program: Program, ctx: Any, model: Any, logs: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return _fit_in(program, ctx, model, [*_callbacks(program, folder, logs)])


def _fit_in(program: Program, ctx: Any, model: Any, callbacks: list[Any]) -> Any:
    data = training_data(program)
    options = {**validation_data(program), "epochs": program.epochs, "callbacks": callbacks}
    if program.first_epoch:
        options["initial_epoch"] = program.first_epoch
    if (weight := class_weight(program)) is not None and program.data == "arrays":
        options["class_weight"] = weight
    if program.steps_per_epoch and program.data != "repeated":
        data["steps_per_epoch"] = program.steps_per_epoch
    if program.call == "model.fit":
        return model.fit(**data, **options, verbose=0)
    return ctx.fit(model, data.pop("x"), data.pop("y", None), **data, **options)


def _evaluate(program: Program, ctx: Any, model: Any) -> dict[str, float]:
    x, y, _ = arrays(program, _num_rows(program, 23), salt=2)
    if program.call == "model.fit" and program.inputs not in OF_DATASETS:
        done: dict[str, float] = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
        return done

    def data() -> tf.data.Dataset:
        return batches(program, (x, y), 8)

    return dict(ctx.evaluate(model, data if program.is_shared else data()))


def _predict(program: Program, ctx: Any, model: Any) -> Any:
    x, _, _ = arrays(program, _num_rows(program, 21), salt=3)
    if program.call == "model.fit" and program.inputs not in OF_DATASETS:
        return model.predict(x, batch_size=8, verbose=0)
    # Of a tuple Keras takes the first for the inputs, and the second for labels.
    rows = (x,) if isinstance(x, tuple) or program.inputs in OF_DATASETS else x
    data = batches(program, rows, 8)
    return model.predict(data, verbose=0) if program.call == "model.fit" else ctx.predict(model, data)


def _num_rows(program: Program, odd: int) -> int:
    """Returns how many rows are evaluated or predicted: as many as batches divide, if those of fit are so."""
    is_even = program.seed >= ORDINARY and program.num_examples % program.batch_size == 0
    return 24 if is_even else odd


def _on_batch(program: Program, model: Any, *, is_test: bool) -> dict[str, float]:
    x, y, _ = arrays(program, 8, salt=4)
    model.reset_metrics()  # of the training before
    call = model.test_on_batch if is_test else model.train_on_batch
    done: dict[str, float] = call(given(program, x), y, return_dict=True)
    return done


def _compile_again(program: Program, ctx: Any, model: Any) -> None:
    with ctx.strategy.scope():
        compile_model(program, model)


def _freeze(program: Program, ctx: Any, model: Any) -> None:
    with ctx.strategy.scope():
        layer = next(one for one in model._flatten_layers() if type(one).__name__ in ("Dense", "Embedding"))
        layer.trainable = False
        compile_model(program, model)


def _shrink_weights(program: Program, ctx: Any, model: Any) -> None:
    model.set_weights([0.9 * one if one.dtype.kind == "f" else one for one in model.get_weights()])


def _change_rate(program: Program, ctx: Any, model: Any) -> None:
    if isinstance(model.optimizer.learning_rate, float) or program.schedule == KEEP:
        model.optimizer.learning_rate = 0.005


# What may happen to a model before it is trained again.
BEFORE_A_FIT: dict[str, Callable[[Program, Any, Any], None] | None] = {
    "fit": None,
    "recompile": _compile_again,
    "freeze": _freeze,
    "set_weights": _shrink_weights,
    "rate": _change_rate,
}


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


def _reloaded_whole(program: Program, ctx: Any, model: Any) -> Any:
    """Returns another model from a file of a whole one; classes of the program's own cannot be written."""
    if program.model not in ("functional", "nested", "sequential") or has_own_layers(program):
        return model
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.keras"))
        model.save(file)
        with ctx.strategy.scope():
            return keras.models.load_model(file, custom_objects=own_objects(), safe_mode=False)


def _some_inputs(program: Program) -> Any:
    x, _, _ = arrays(program, 2, salt=5)
    return given(program, x)


def _callbacks(program: Program, folder: str, logs: Any) -> list[Any]:
    monitor = "loss" if program.validation == KEEP else "val_loss"
    has_schedule = program.schedule != KEEP and program.optimizer != "nadam"
    made = {
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor, factor=0.5, patience=0, min_delta=1.0),
        "rate": lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (epoch + 1)),
        "stopping": lambda: keras.callbacks.EarlyStopping(monitor, patience=0, min_delta=0.5),
        "batches": lambda: _Batches(),
        "best": lambda: keras.callbacks.ModelCheckpoint(
            f"{folder}/best.weights.h5", monitor, save_best_only=True, save_weights_only=True
        ),
        "restoring": lambda: keras.callbacks.EarlyStopping(
            monitor, patience=0, min_delta=0.5, restore_best_weights=True
        ),
        "stop_early": lambda: _StopEarly(),
        "batch_rate": lambda: _RateOfBatches(),
        "swap": lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        "logs": lambda: logs,
        "lambda": lambda: keras.callbacks.LambdaCallback(**{LAMBDA_HOOK: logs.keep}),
    }
    is_left_out = {
        **dict.fromkeys(("plateau", "rate", "batch_rate"), has_schedule),
        "swap": not program.ema or not hasattr(keras.callbacks, "SwapEMAWeights"),
    }
    return [made[name]() for name in program.callbacks if not is_left_out.get(name)]


class _Batches(keras.callbacks.Callback):  # type: ignore[misc]
    """Watches batches, which makes each of them a call of its own."""

    num_batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.num_batches += 1


class _StopEarly(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops in the middle of the first epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.model.stop_training = True


class _RateOfBatches(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives each batch a learning rate of its own, as warm-ups do."""

    num_batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.num_batches += 1
        self.model.optimizer.learning_rate = 0.02 / self.num_batches


class _Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps what is shown after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[float]] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.keep(batch, logs)

    def keep(self, batch: int, logs: Any) -> None:
        for name, value in (logs or {}).items():
            # Metrics may return several numbers.
            self.values.setdefault(name, []).append(float(np.sum(np.asarray(value))))


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
