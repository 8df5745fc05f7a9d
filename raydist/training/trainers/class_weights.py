"""Keras's `class_weight` for data that Keras does not weight itself: each label becomes a sample weight."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.input import train_data
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.trainers.trainer import FitRequest


def applied(data: Any, request: FitRequest) -> Any:
    """Returns `data` with weights by the request's classes; as they are where it has none.

    Raises:
      UnsupportedError: They are distributed already.
    """
    if not request.class_weight:
        return data
    weighted = adapter_of(request.model).class_weights(request.class_weight)
    if isinstance(data, Batches):
        return data.map(weighted)
    if callable(data):
        return _mapped(data, weighted)
    return _weighted(data, weighted)


def _weighted(data: Any, weighted: Callable[..., Any]) -> Any:
    if isinstance(data, tf.data.Dataset):
        return data.map(weighted)
    raise UnsupportedError(
        f"class_weight cannot be given for a {type(data).__name__}; map it to (x, y, weight) before "
        "it is distributed"
    )


def _mapped(function: Callable[..., Any], weighted: Callable[..., Any]) -> Callable[..., Any]:
    if train_data.takes_input_context(function):

        @functools.wraps(function)
        def of_context(context: tf.distribute.InputContext) -> Any:
            return _weighted(function(context), weighted)

        return of_context

    @functools.wraps(function)
    def of_nothing() -> Any:
        return _weighted(function(), weighted)

    return of_nothing
