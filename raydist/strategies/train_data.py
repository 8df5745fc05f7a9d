"""Reads `train_data` by TensorFlow's own conventions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError


def read(train_data: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a `tf.data.Dataset` batched with the global batch size, or a `DistributedDataset`.

    Takes a data set of either kind, a function without arguments that returns one, or a function of
    a `tf.distribute.InputContext` that shards for itself and batches per replica.

    Raises:
      UnsupportedError: It is none of these.
    """
    if isinstance(train_data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        return train_data
    if callable(train_data):
        if _takes_input_context(train_data):
            return strategy.distribute_datasets_from_function(train_data)
        returned = train_data()
        if isinstance(returned, (tf.data.Dataset, tf.distribute.DistributedDataset)):
            return returned
        raise UnsupportedError(
            f"the train_data function {_name(train_data)} returned {type(returned).__name__}; "
            "return a tf.data.Dataset batched with the global batch size"
        )
    raise UnsupportedError(
        f"train_data is {type(train_data).__name__}; give a tf.data.Dataset batched with the global "
        "batch size, or a function that returns one"
    )


def num_batches(dataset: Any) -> int | None:
    """Returns the global batches in one epoch; None where it is infinite or unknown."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    size = int(dataset.cardinality())
    return size if size >= 0 else None


def _takes_input_context(function: Callable[..., Any]) -> bool:
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
