"""A Keras 3 model that answers outside of its strategy, without a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf


@contextmanager
def serving(model: Any) -> Iterator[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
    """Yields a function of a batch's inputs, and plain variables to fill for it; see `KerasAdapter.serving`.

    The variables stand for `model.variables`, in their order. Enter it outside of every strategy's scope.
    """
    values = [tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False) for one in model.variables]
    # A `call` may update metrics, whose own variables only all workers together can read.
    metrics = [(one, tf.zeros(one.shape, one.dtype)) for one in model.metrics_variables]

    def serve(inputs: Any) -> Any:
        held = [(old, tf.identity(new)) for old, new in zip(model.variables, values, strict=True)]
        with keras.StatelessScope(state_mapping=[*held, *metrics]):
            return model(inputs, training=False)

    yield serve, values, []
