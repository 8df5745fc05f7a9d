"""Evaluation and prediction by Keras's own functions; EvaluatorTrainer evaluates alongside the training."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.checkpointing.saved_state import SavedState
from raydist.training.input import recipes, sources, train_data
from raydist.training.keras_patches import adapters
from raydist.training.reporting import reporter
from raydist.training.reporting.logs import by_element, numbers
from raydist.training.trainers import fit_data
from raydist.training.trainers.base import EvaluateRequest, FitRequest, LoopRequest, PredictRequest, TaskRun

OF_EVALUATE = ("steps", "data of ctx.evaluate")
DATA_OF_PREDICT = "data of ctx.predict"
OF_PREDICT = ("steps", DATA_OF_PREDICT)
OF_VALIDATION = ("validation_steps", "validation_data")


def _read(data: Any, run: TaskRun, model: Any) -> Any:
    """Returns what Keras's `evaluate` is given."""
    _, name = OF_EVALUATE
    if isinstance(data, Batches):
        return _read_batches(data, run, has_own=adapters.has_own(model, "evaluate"))
    if fit_data.check_py_dataset(data, model, name=name):
        return data  # each worker reads all batches and keeps its part of each
    if fit_data.is_generator(data):
        data, specs = fit_data.dataset_of_generator(data, model, name=name)
        adapter = adapters.adapter_of(model)
        if adapter.opens_sizes:
            adapter.build(model, specs.model)
    return train_data.read(data, run.strategy, auto_shard=run.auto_shard, name=name)


def _read_batches(data: Batches, run: TaskRun, *, has_own: bool) -> Any:
    """Returns batches without an end, for a number of steps.

    Args:
      has_own: Whether the model has its own function for them, which may change them, as KerasHub's do.
    """
    read = recipes.global_batches if has_own else recipes.parts_of_workers
    return read(data.for_epochs(None), run.strategy)


def data_to_predict(request: PredictRequest) -> Any:
    """Returns a dataset, a function that makes one, or batches of raydist.data.

    Raises:
      UnsupportedError: They are arrays without rows.
    """
    data, size = request.data, request.batch_size
    fit_data.check_batch_size(size)
    if not recipes.is_arrays(data):
        described = f"data of {type(data).__name__}"
        fit_data.refuse_beside_batches("ctx.predict", described, {"batch_size": size is not None})
    floatx = adapters.adapter_of(request.model).library.backend.floatx()
    if isinstance(data, Batches):
        if data.seed is not None:
            reporter.note(_SHUFFLED)
        return data
    if not recipes.is_arrays(data):
        return data
    rows = recipes.Rows.of(data, floatx=floatx)
    return tf.data.Dataset.from_tensor_slices(rows.structure).batch(size or recipes.BATCH_SIZE)


_SHUFFLED = (
    f"{DATA_OF_PREDICT} are batches of raydist.data that are shuffled, so the outputs come in their order; "
    "for that of the source give batches(shuffle=False)"
)


def predicted(request: PredictRequest, dataset: Any) -> Any:
    """Returns the outputs by Keras; raises UnsupportedError for a dataset without rows, or without order."""
    if callable(dataset) or isinstance(dataset, tf.distribute.DistributedDataset):
        raise UnsupportedError(
            f"{DATA_OF_PREDICT} is divided among the workers before raydist reads it, so the order of its "
            "rows is lost; give a tf.data.Dataset that names no auto-shard policy, or a function without "
            "arguments that returns one, and use --auto-shard data"
        )
    if not isinstance(dataset, tf.data.Dataset):
        raise UnsupportedError(
            f"{DATA_OF_PREDICT} is {type(dataset).__name__}; give arrays, batches of raydist.data, a "
            "tf.data.Dataset, or a function without arguments that returns one"
        )
    if int(dataset.cardinality()) == 0:
        raise UnsupportedError(f"{DATA_OF_PREDICT} has no batches; give at least one")
    return request.model.predict(dataset, steps=request.steps, verbose=0)


def with_batches(request: EvaluateRequest) -> EvaluateRequest:
    """Returns the request with arrays, `x` or `(x, y)` or `(x, y, sample_weight)`, as batches.

    Raises:
      UnsupportedError: Labels, weights or a size are given beside data that have them.
    """
    size = request.batch_size
    fit_data.check_batch_size(size)
    parts = {"y": request.y, "sample_weight": request.sample_weight}
    given = {name: one is not None for name, one in parts.items()}
    if not recipes.is_arrays(request.data):
        described = f"data of {type(request.data).__name__}"
        fit_data.refuse_beside_batches("ctx.evaluate", described, {**given, "batch_size": size is not None})
        return request
    floatx = adapters.adapter_of(request.model).library.backend.floatx()
    if any(given.values()):
        rows = recipes.Rows.of(request.data, *parts.values(), floatx=floatx)
        data = rows.batches(size or recipes.BATCH_SIZE, shuffle=False)
    else:
        data = recipes.batches_of(request.data, batch_size=size, floatx=floatx)
    return dataclasses.replace(request, data=data)


def num_steps(data: Any, asked: int | None, *, names: tuple[str, str] = OF_EVALUATE) -> int | None:
    """Returns how many global batches an evaluation takes; None for all of data that end by themselves.

    Batches of raydist.data are read without an end, because tf_keras wants the number of steps of a
    distributed dataset: more steps than those of one epoch would count examples twice.

    Args:
      names: What `asked` and `data` are called in the call.
    """
    if not isinstance(data, Batches):
        return asked
    whole = data.steps_per_epoch
    if asked is not None and asked > whole:
        reporter.note(
            f"{names[0]} is {asked}, and {names[1]} has {whole} batches of {data.global_batch_size}: "
            f"{whole} steps evaluate each example once"
        )
    return min(asked or whole, whole)


def verbosity(run: TaskRun, asked: int | str | None, *, default: int) -> int | str:
    """Returns what Keras shall print in this task: nothing, but in the chief."""
    if not run.assignment.is_chief:
        return 0
    return default if asked is None else asked


POLL_S = 0.5


class KerasEvaluation:
    """The calls that Keras's own functions do, in every task that is no coordinator."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    def evaluate(self, request: EvaluateRequest) -> dict[str, Any]:
        """Returns the metrics over the data, each example counted once; every task calls it."""
        run, model = self._run, request.model
        adapters.check(model, run.strategy)
        data = with_batches(request).data
        steps = num_steps(data, request.steps)
        dataset = _read(data, run, model)
        verbose = verbosity(run, request.verbose, default=0)
        return numbers(model.evaluate(dataset, steps=steps, verbose=verbose, return_dict=True))

    def predict(self, request: PredictRequest) -> Any:
        """Returns the outputs for all rows in their order, in every task."""
        run, data, model = self._run, data_to_predict(request), request.model
        if isinstance(data, Batches):
            dataset = _read_batches(data, run, has_own=adapters.has_own(model, "predict"))
            return model.predict(dataset, steps=num_steps(data, request.steps, names=OF_PREDICT), verbose=0)
        dataset = train_data.read(data, run.strategy, auto_shard=run.auto_shard, name=DATA_OF_PREDICT)
        return predicted(request, dataset)


class EvaluatorTrainer(KerasEvaluation):
    """What an evaluator makes of the calls by which the others train."""

    def fit(self, request: FitRequest) -> Any:
        """Evaluates the checkpoints of this `fit` until training is done; returns a Keras `History`.

        It has the values of the training beside its own: the code after `fit` runs here, too.

        Reports `val_` values at the checkpoint's step, with `evaluator_lag_steps`, by how many steps the
        newest checkpoint was ahead when the evaluation was done, and `evaluator_lag_s`, the seconds since
        the evaluated one was found.
        """
        run, model = self._run, request.model
        data = fit_data.resolved(request, seed=run.data_seed).validation_data
        if data is None:
            raise UnsupportedError(
                "the evaluator has nothing to evaluate: give ctx.fit validation_data, or use --no-evaluator"
            )
        adapter = adapters.adapter_of(model)
        adapters.check(model, run.strategy)
        steps = num_steps(data, request.validation_steps, names=OF_VALIDATION)
        dataset = train_data.read(data, run.strategy, auto_shard=run.auto_shard, name="validation_data")
        adapter.build(model, sources.element_spec(dataset))  # or nothing could be restored
        history = adapter.library.callbacks.History()
        history.set_model(model)
        history.on_train_begin()
        number = run.num_fits
        run.num_fits += 1
        seen: SavedState | None = None
        last: SavedState | None = None  # of this fit
        while True:
            # Asked before the look at storage: what was committed by then is seen.
            is_last = run.commands.finish.is_set()
            state = run.checkpoints.next_to_evaluate(seen)
            if state is None and is_last and not history.history:
                state = run.checkpoints.newest_after(0)  # evaluated by the process before this one
            seen = state or seen
            if state is not None and state.fit == number:
                last = state
                self._evaluate(model, dataset, state, history, num_steps=steps)
            elif is_last or (state is not None and state.fit > number):
                return _with_training(history, last)
            else:
                run.commands.finish.wait(POLL_S)

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        raise UnsupportedError("the evaluator evaluates what ctx.fit trains; use --no-evaluator")

    def _evaluate(
        self, model: Any, data: Any, state: SavedState, history: Any, *, num_steps: int | None
    ) -> None:
        run = self._run
        found_at_s = time.time()
        run.checkpoints.restore(state, {"model": model})
        # The data are read from the start each time, also those of a generator or a shuffle.
        logs = numbers(model.evaluate(data, steps=num_steps, verbose=0, return_dict=True))
        lag_steps = max(0, run.checkpoints.newest_step() - state.step)
        metrics = {f"val_{name}": value for name, value in logs.items()}
        lag = {"evaluator_lag_steps": float(lag_steps), "evaluator_lag_s": time.time() - found_at_s}
        run.checkpoints.evaluated(state, by_element(metrics))
        run.reporter.progress.evaluated(state.step, lag_steps=lag_steps)
        run.reporter.report({**by_element(metrics), **lag}, step=state.step, epoch=state.epoch)
        history.on_epoch_end(state.epoch - 1, metrics)


def _with_training(history: Any, last: SavedState | None) -> Any:
    """Returns an evaluator's history with the logs of each epoch that the last checkpoint has."""
    for logs in () if last is None else last.history:
        for name, value in logs.items():
            history.history.setdefault(name, []).append(value)
    return history
