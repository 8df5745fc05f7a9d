"""A tf_keras model that answers outside of its strategy, without a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from raydist.training.tf_private import ShardedVariable


@contextmanager
def serving(model: Any) -> Iterator[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
    """Yields a function of a batch's inputs, and plain variables to fill for it; see `KerasAdapter.serving`.

    Inside of the block the plain variables are in the places of the model's own, so trace the function there.
    """
    own = [one for one in model.variables if isinstance(one, (tf.Variable, ShardedVariable))]
    values = [_plain(one) for one in own]
    plain = {id(old): new for old, new in zip(own, values, strict=True)}
    # A `call` may update metrics, whose own variables only all workers together can read.
    metrics = {id(one): _plain(one) for metric in model.metrics for one in metric.variables}
    metrics = {key: one for key, one in metrics.items() if key not in plain}
    plain.update(metrics)

    def serve(inputs: Any) -> Any:
        return model(inputs, training=False)

    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for one in (model, *model.submodules):
            attributes = vars(one)  # past tf_keras's tracking
            for name, value in list(attributes.items()):
                replaced = _replaced(value, plain)
                if replaced is not value:
                    changed.append((attributes, name, value))
                    attributes[name] = replaced
        yield serve, values, list(metrics.values())
    finally:
        for attributes, name, value in reversed(changed):
            attributes[name] = value


def _plain(variable: Any) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)


def _replaced(value: Any, plain: dict[int, tf.Variable]) -> Any:
    """Returns a value with plain variables in it; itself where it has none."""
    if isinstance(value, (list, tuple)) and any(id(one) in plain for one in value):
        return [plain.get(id(one), one) for one in value]
    if isinstance(value, dict) and any(id(one) in plain for one in value.values()):
        return {key: plain.get(id(one), one) for key, one in value.items()}
    return plain.get(id(value), value)
