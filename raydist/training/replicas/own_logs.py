"""The logs of a step of the user's own, which may hold other values than metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster.collectives import means_over_workers
from raydist.training.replicas import slices


def weighted(outputs: Any, element: Any, model: Any, *, num_replicas: int) -> Any:
    """Returns what a user's own step returned for one replica's slice, weighted by its number of examples.

    The mean over replicas is then that over all examples. Metrics know their examples, and are left alone.
    """
    if not isinstance(outputs, Mapping) or not isinstance(element, slices.Slice):
        return outputs
    return _weighted(outputs, element.share * num_replicas, _results_in(outputs, model))


def own_scalars(outputs: Any, model: Any) -> list[tf.Tensor]:
    """Returns the numbers that a step of the user's own returned and that are no results of metrics."""
    if not isinstance(outputs, Mapping):
        return []
    names = _results_in(outputs, model)
    return [
        value
        for name, value in _leaves(outputs)
        if name not in names and tf.is_tensor(value) and _is_number(value)
    ]


def _results_in(outputs: Mapping[str, Any], model: Any) -> set[str]:
    """Returns the names of the values that are results of the model's metrics.

    A step may return a value of its own by the name of a metric that it does not update: Keras 3 has a metric
    `loss` whether a loss was compiled or not.
    """
    metrics = {one.name: one for metric in model.metrics for one in (metric, *getattr(metric, "metrics", ()))}
    known = [(name, value, metrics[name]) for name, value in _leaves(outputs) if name in metrics]
    return {name for name, value, metric in known if _is_result(value, metric.variables)}


def _is_result(value: Any, variables: Sequence[Any]) -> bool:
    # Keras 3 wraps its variables.
    inner = [one if isinstance(one, tf.Variable) else one.value for one in variables]
    if isinstance(value, tf.Tensor) and hasattr(value, "graph"):
        return tf_private.reads_any(value, inner)
    return any(bool(tf.reduce_any(tf.cast(one, tf.bool))) for one in inner)


def _weighted(logs: Mapping[str, Any], factor: Any, names: Collection[str]) -> dict[str, Any]:
    found = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found[name] = _weighted(value, factor, names)
        else:
            is_own = name not in names and _is_number(value)
            # A padding example's value may be anything, and 0 times an overflow would be NaN.
            found[name] = tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype)) if is_own else value
    return found


def of_update(outputs: Sequence[Any], shares: Sequence[Any], model: Any, *, num_replicas: int) -> Any:
    """Returns what a user's own step returned for the batches of an update, as of all of their examples.

    Metrics have their last values.

    Args:
      outputs: Of each batch.
      shares: The part that each batch has of all examples of the update.
    """
    if not isinstance(outputs[-1], Mapping):
        return outputs[-1]
    names = _results_in(outputs[-1], model)
    parts = [_weighted(one, share * num_replicas, names) for one, share in zip(outputs, shares, strict=True)]
    return _summed(parts, names)


def _summed(parts: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    found = {}
    for name, last in parts[-1].items():
        if isinstance(last, Mapping):
            found[name] = _summed([one[name] for one in parts], names)
        else:
            is_own = name not in names and _is_number(last)
            found[name] = tf.add_n([one[name] for one in parts]) if is_own else last
    return found


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
      metrics: The values of the model's metrics over all replicas, which take the place of a replica's own,
        unless the step has not updated the metric.
    """
    metrics = {name: value for name, value in metrics.items() if _is_updated(value)}
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


def joined(returned: Mapping[str, float], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the logs of steps that returned means of their own, and updated some of the metrics."""
    if not returned:
        return dict(metrics)
    results = {name: value for name, value in metrics.items() if name in returned and _is_updated(value)}
    return {**returned, **results}


def returns_more_than(metrics: Mapping[str, Any], logs: Any) -> bool:
    """Whether a step's logs have a value by the name of a metric that it has not updated."""
    if not isinstance(logs, Mapping):
        return False
    return any(name in metrics and not _is_updated(metrics[name]) for name, _ in _leaves(logs))


def _is_updated(result: Any) -> bool:
    """Whether a metric's result over all replicas shows an update.

    0, NaN and the infinities, as of a maximum, are what metrics without an update return. One that was
    updated, and returns that all the same, has returned it to the step as well.
    """
    return bool(np.any(np.nan_to_num(np.asarray(result, dtype="float64"), posinf=0.0, neginf=0.0)))


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
