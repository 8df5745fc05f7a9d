"""Evaluation and prediction by Keras's own functions, with the data that `fit` takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.cluster.kinds import is_parameter_server
from raydist.training.input import arrays, recipes, train_data
from raydist.training.keras_patches import adapters
from raydist.training.reporting import reporter
from raydist.training.reporting.logs import floats
from raydist.training.trainers.task_run import TaskRun
from raydist.training.trainers.trainer import EvaluateRequest

OF_EVALUATE = ("steps", "data of ctx.evaluate")
OF_VALIDATION = ("validation_steps", "validation_data")


def evaluate(run: TaskRun, request: EvaluateRequest) -> dict[str, float]:
    """Returns the metrics over the data, each example counted once; every task calls it."""
    model = request.model
    adapters.check(model, run.strategy)
    data = with_batches(request).data
    steps = num_steps(data, request.steps)
    if isinstance(data, Batches):
        dataset = recipes.parts_of_workers(data.for_epochs(None), run.strategy)
    else:
        dataset = train_data.read(data, run.strategy, auto_shard=run.auto_shard)
    verbose = verbosity(run, request.verbose, default=0)
    return floats(model.evaluate(dataset, steps=steps, verbose=verbose, return_dict=True))


def predict(run: TaskRun, model: Any, data: Any, *, steps: int | None) -> Any:
    """Returns the outputs for all rows in their order, in every task."""
    adapters.adapter_of(model)
    if isinstance(data, np.ndarray):
        data = tf.data.Dataset.from_tensor_slices(data).batch(arrays.BATCH_SIZE)
    # Under parameter_server Keras predicts in the chief, on the whole data.
    is_read = not is_parameter_server(run.strategy)
    if is_read and not isinstance(data, Batches):
        data = train_data.read(data, run.strategy, auto_shard=run.auto_shard)
    elif callable(data):
        data = data()
    if not isinstance(data, tf.data.Dataset):
        raise UnsupportedError(
            "ctx.predict returns outputs in the order of the data, and data that the workers shard "
            "have none; give a tf.data.Dataset that names no auto-shard policy, and use --auto-shard data"
        )
    return model.predict(data, steps=steps, verbose=0)


def with_batches(request: EvaluateRequest) -> EvaluateRequest:
    """Returns the request with arrays, `x` or `(x, y)` or `(x, y, sample_weight)`, as batches."""
    if not arrays.is_arrays(request.data):
        return request
    floatx = adapters.adapter_of(request.model).library.backend.floatx()
    return dataclasses.replace(request, data=arrays.batches_of(request.data, floatx=floatx))


def num_steps(data: Any, asked: int | None, *, names: tuple[str, str] = OF_EVALUATE) -> int | None:
    """Returns how many global batches an evaluation takes; None for all of data that end by themselves.

    Batches of raydist.data are read without an end, because tf_keras wants the number of steps of a
    distributed dataset: more steps than those of one epoch would count examples twice.

    Args:
      asked: The argument of the call; None for all.
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
