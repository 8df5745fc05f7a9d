"""The logs of a step of the user's own, which may hold other values than metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.strategies.agreement import means_over_workers


def mean_of_replicas(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """Returns the mean of this task's replicas; of what is no number, the first one's value."""
    values = strategy.experimental_local_results(value)
    first = values[0]
    if len(values) == 1 or not tf.is_tensor(first) or not first.dtype.is_floating:
        return first
    return tf.add_n(list(values)) / tf.cast(len(values), first.dtype)


def of_all_replicas(
    strategy: tf.distribute.Strategy, logs: Mapping[str, Any], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the last step's logs alike on all workers: a collective.

    A callback such as EarlyStopping decides by them, and workers that decide differently would wait for
    each other without end.

    Args:
      metrics: The values of the model's metrics over all replicas, which take the place of a replica's own.
    """
    own = [value for name, value in _leaves(logs) if name not in metrics and _is_number(value)]
    means = iter(means_over_workers(strategy, [float(value) for value in own]) if own else [])

    def reduced(name: str, value: Any) -> Any:
        # A step that returns `{m.name: m.result() for m in self.metrics}` has a dict in it.
        if isinstance(value, Mapping):
            return {inner: reduced(inner, one) for inner, one in value.items()}
        if name in metrics:
            return metrics[name]
        return next(means) if _is_number(value) else value

    return {name: reduced(name, value) for name, value in logs.items()}


def _leaves(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield name, value


def _is_number(value: Any) -> bool:
    if tf.is_tensor(value):
        return value.shape.rank == 0 and value.dtype.is_floating
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.floating)
