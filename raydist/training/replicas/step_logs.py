"""The logs of a step of the user's own, which may hold other values than metrics.

In come what each replica's step returned, and what its trace has shown of metrics (`Results`). Out go the
logs of this task (`of_task`) and, at an epoch's end and by a collective, those of all replicas (`of_epoch`).
stepping/model_steps.py and the models of keras_patches/ call these.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster.collectives import (
    gather_over_workers,
    inconsistent_workers,
    is_alone,
    means_over_replicas,
    means_over_workers,
)
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.replicas import batch_slices
from raydist.training.replicas.model_states import state_of
from raydist.training.replicas.replica_share import num_replicas
from raydist.training.reporting import reporter
from raydist.training.user_code.code_names import described

# Bytes of the names that a step returns, of which workers compare those at most.
_MOST_BYTES = 512
# Most metrics of an eager step: they are bits of a number.
_MOST_COMPARED = 60


class Results:
    """Which values in the logs of a step are results of the model's metrics.

    A step may show a metric by another name, such as `{"loss": self.total.result()}`, and a value of its own
    by the name of a metric that it does not update: Keras 3 has a metric `loss` whether a loss was compiled
    or not.

    Attributes:
      metrics: The name of the metric by the name of the value.
      derived: Names of the values that are worked out from metrics, such as `tf.exp(self.total.result())`.
      is_guessed: Whether eager steps were looked at. Their metrics are recognized by value, which misses one
        that is 0 on this replica.
    """

    def __init__(self, model: Any) -> None:
        # What is known of a model must not keep it. A loop of steps has none.
        self._model: Any = None if model is None else weakref.ref(model)
        self.metrics: dict[str, str] = {}
        self.derived: set[str] = set()
        self.is_guessed = self._is_checked = False
        # By the name of a value the metrics that it equals, and those that it does not: a bit for each.
        self._guesses: dict[str, tuple[int, int]] = {}

    def noted(self, outputs: Any) -> Any:
        """Returns the logs of a step, which it looks at in the step's trace.

        Keras 3 returns the variable itself as the result of a metric whose `result` does.
        """
        outputs = as_tensors(outputs)
        self.look_at(outputs)
        return outputs

    def look_at(self, outputs: Any) -> None:
        """Finds what the logs of a step show: in its trace, or by the values of an eager step."""
        self.metrics, self.derived, self.is_guessed = {}, set(), tf.executing_eagerly()
        if not isinstance(outputs, Mapping):
            return
        if self.is_guessed:
            self._compare(outputs)
            return
        metrics = {one.name: one for one in inner_metrics(self._model())}
        for name, value in _leaves(outputs):
            read = [one for one in metrics.values() if _may_show(value, one)]
            shown = [one.name for one in read if not _differs(value, one)]
            if shown:
                self.metrics[name] = name if name in shown else shown[0]
            elif read:
                self.derived.add(name)

    def forget_guesses(self) -> None:
        """Begins anew with the values of eager steps."""
        self._guesses = {}

    def agree(self, strategy: tf.distribute.Strategy, logs: Mapping[str, Any]) -> None:
        """Shares with all workers which logs are metrics. A collective after eager steps, and the first time.

        Raises:
          UnsupportedError: The step returns other names on another worker.
        """
        names = [name for name, _ in _leaves(logs)]
        if is_alone(strategy):
            return
        if self.is_guessed or not self._is_checked:
            self._is_checked = True
            check_names(strategy, names, step="train_step")
        if not self.is_guessed or not names:
            return
        own = [mask for name in names for mask in self._guesses.get(name, (0, 0))]
        rows = gather_over_workers(strategy, own)
        masks = [functools.reduce(operator.or_, column) for column in zip(*rows, strict=True)]
        self._guesses = dict(zip(names, zip(masks[::2], masks[1::2], strict=True), strict=True))
        self._choose()

    def _compare(self, outputs: Mapping[str, Any]) -> None:
        for index, metric in enumerate(inner_metrics(self._model())[:_MOST_COMPARED]):
            if not any(bool(tf.reduce_any(tf.cast(one, tf.bool))) for one in _variables_of(metric)):
                continue  # it may be any other replica's
            result = as_tensors(metric.result())
            for name, value in _leaves(outputs):
                equal, unequal = self._guesses.get(name, (0, 0))
                if name == metric.name or _is_same(value, result):
                    equal |= 1 << index
                else:
                    unequal |= 1 << index
                self._guesses[name] = equal, unequal
        self._choose()

    def _choose(self) -> None:
        """Takes a value for the metric that it has equalled in all steps and on all replicas so far."""
        known = [one.name for one in inner_metrics(self._model())]
        for name, (equal, unequal) in self._guesses.items():
            shown = [metric for index, metric in enumerate(known) if (equal & ~unequal) >> index & 1]
            if shown:
                self.metrics[name] = name if name in shown else shown[0]
            else:
                self.metrics.pop(name, None)

    def note_derived(self, function: Any) -> None:
        """Notes the values of `function`, the step, that are worked out from metrics, if there are any."""
        if self.derived:
            reporter.note(_describe_derived(function, self.derived))

    def own_scalars(self, outputs: Any) -> list[tf.Tensor]:
        """Returns the numbers in logs that do not depend on metrics."""
        if not isinstance(outputs, Mapping):
            return []
        return [
            value
            for name, value in _leaves(outputs)
            if name not in self.metrics
            and name not in self.derived
            and tf.is_tensor(value)
            and _is_number(value)
        ]

    def weighted(self, outputs: Any, element: Any) -> Any:
        """Returns the logs of one replica's slice, weighted by its number of examples.

        The mean over replicas is then that over all examples. Metrics know their examples, and are left
        alone.
        """
        if not isinstance(outputs, Mapping) or not isinstance(element, batch_slices.Slice):
            return outputs
        return _weighted(outputs, element.share * num_replicas(), self.metrics)


def as_tensors(values: Any) -> Any:
    """Returns a value, or a dict of them, with tensors in place of variables."""
    if isinstance(values, Mapping):
        return {name: as_tensors(one) for name, one in values.items()}
    return tf.convert_to_tensor(values) if hasattr(values, "assign") else values


def inner_metrics(model: Any) -> list[Any]:
    """Returns a model's metrics, and those that they hold, as Keras 3's compiled ones do."""
    return [one for metric in model.metrics for one in (metric, *getattr(metric, "metrics", ()))]


def variables_of_metrics(model: Any) -> list[tf.Variable]:
    return [variable for metric in model.metrics for variable in _variables_of(metric)]


def set_shown(model: Any, results: Results | None) -> None:
    """Notes what the step that is to run shows, for `of_epoch`; None for a step of Keras's own."""
    state = state_of(model)
    state.shown, state.has_shown = results, True
    if results is not None:
        results.forget_guesses()


def _variables_of(metric: Any) -> list[tf.Variable]:
    # Keras 3 wraps its variables.
    return [one if isinstance(one, tf.Variable) else one.value for one in metric.variables]


def _may_show(value: Any, metric: Any) -> bool:
    """Whether a value in the logs of a traced step depends on what a metric has counted."""
    is_traced = isinstance(value, tf.Tensor) and hasattr(value, "graph")
    return is_traced and tf_private.reads_any(value, _variables_of(metric))


def _is_same(value: Any, result: Any) -> bool:
    """Whether a value equals a metric's result, whatever its name in the logs."""
    if not (tf.is_tensor(value) and tf.is_tensor(result)) or value.dtype != result.dtype:
        return False
    return value.shape == result.shape and bool(tf.reduce_all(value == result))


def _differs(value: Any, metric: Any) -> bool:
    """Whether a value is worked out in another way than the metric's result."""
    if not isinstance(value, tf.Tensor) or not hasattr(value, "graph"):
        return False
    result = as_tensors(metric.result())
    return isinstance(result, tf.Tensor) and not tf_private.computes_same(value, result)


def _weighted(logs: Mapping[str, Any], factor: Any, names: Collection[str]) -> dict[str, Any]:
    def weighted(name: str, value: Any) -> Any:
        is_own = name not in names and _is_number(value)
        # A padding example's value may be anything, and 0 times an overflow would be NaN.
        return tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype)) if is_own else value

    return _mapped(logs, weighted)


def _mapped(logs: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns logs, and the dicts in them, with what `change` makes of each name and value."""
    return {
        name: _mapped(value, change) if isinstance(value, Mapping) else change(name, value)
        for name, value in logs.items()
    }


def of_update(outputs: Sequence[Any], shares: Sequence[Any], shown: Results) -> Any:
    """Returns what a user's own step returned for the batches of an update, as of all of their examples.

    Metrics have their last values.

    Args:
      shares: The part that each batch has of all examples of the update.
    """
    if not isinstance(outputs[-1], Mapping):
        return outputs[-1]
    metrics = shown.metrics
    parts = [
        _weighted(one, share * num_replicas(), metrics) for one, share in zip(outputs, shares, strict=True)
    ]
    of_batches = zip(*map(_leaves, parts), strict=True)

    def summed(name: str, last: Any) -> Any:
        values = [value for _, value in next(of_batches)]
        return tf.add_n(values) if name not in metrics and _is_number(last) else last

    return _mapped(parts[-1], summed)


def of_replicas(strategy: tf.distribute.Strategy, outputs: Any) -> Any:
    """Returns what a step has returned with the means of this task's replicas for numbers.

    Of virtual replicas the logs have tuples of what each returned; of what is not a number the first one's.
    """
    is_kept = is_virtual(strategy) and isinstance(outputs, Mapping)

    def joined_value(value: Any) -> Any:
        values = tuple(strategy.experimental_local_results(value))
        first = values[0]
        if not tf.is_tensor(first) or not first.dtype.is_floating:
            return first
        return values if is_kept and first.shape.rank == 0 else _mean(values)

    return tf.nest.map_structure(joined_value, outputs)


def _mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.add_n(list(values)) / tf.cast(len(values), values[0].dtype)


def of_task(model: Any, outputs: Any, *, is_training: bool) -> Any:
    """Returns what a step shows in this task, of what `of_replicas` has returned.

    What each virtual replica has is kept for `of_epoch`, which adds it by the strategy's tree.
    """
    if not is_virtual(model.distribute_strategy) or not isinstance(outputs, Mapping):
        return outputs
    state_of(model).returned[is_training] = dict(_leaves(outputs))
    return _mapped(outputs, lambda name, value: _mean(value) if isinstance(value, tuple) else value)


def _means(model: Any, own: Sequence[tuple[str, Any]]) -> Sequence[float]:
    """Returns the means over all replicas of what a step shows by these names: a collective."""
    strategy = model.distribute_strategy
    if not is_virtual(strategy):
        return means_over_workers(strategy, [float(value) for _, value in own])
    columns = [_values_of_replicas(model, name, float(value)) for name, value in own]
    return means_over_replicas(strategy, np.stack(columns, axis=1))


def _values_of_replicas(model: Any, name: str, shown: float) -> np.ndarray:
    """Returns what each replica of this task has of a value that is shown of the last step, if it is one."""
    for outputs in state_of(model).returned.values():
        values = outputs.get(name)
        if isinstance(values, tuple) and float(_mean(values)) == shown:
            return np.array([float(one) for one in values])
    return np.full([len(model.distribute_strategy.own_replicas)], shown)


def check_names(strategy: tf.distribute.Strategy, names: Sequence[str], *, step: str) -> None:
    """Raises UnsupportedError if a step returns other names on another worker. A collective."""
    if is_alone(strategy):
        return
    text = ", ".join(names).encode()[:_MOST_BYTES]
    rows = gather_over_workers(strategy, [*text, *[0] * (_MOST_BYTES - len(text))])
    if inconsistent := inconsistent_workers(rows):
        odd, usual = inconsistent[0], min({*range(len(rows))} - {*inconsistent})
        texts = [bytes(one for one in row if one).decode(errors="replace") or "nothing" for row in rows]
        raise UnsupportedError(
            f"{step} returns {texts[odd]} on worker/{odd}, and {texts[usual]} on worker/{usual}; return the "
            "same names on all workers"
        )


def of_epoch(model: Any, logs: Any, results: Any) -> Any:
    """Returns the logs of a model's last step alike on all workers: a collective.

    A callback such as EarlyStopping decides by them, and workers that decide differently would wait for
    each other without end.

    Args:
      logs: What the step has returned on this worker.
      results: What Keras shows in its place: the values of the model's metrics over all replicas if the logs
        have their names, but for one that the step has not updated; else `logs` itself.
    """
    if not isinstance(logs, dict):
        return results
    shown = state_of(model).shown
    if shown is not None:
        shown.agree(model.distribute_strategy, logs)
    are_same_names = results is not logs
    metrics = results if are_same_names else as_tensors(model.get_metrics_result())
    if are_same_names and not any(
        name in metrics and _is_own(name, metrics[name], model) for name, _ in _leaves(logs)
    ):
        return results
    if are_same_names or shown is None:
        metrics = {name: value for name, value in metrics.items() if not _is_own(name, value, model)}
    else:
        metrics = _by_shown_name(metrics, shown.metrics)
    own = [(name, value) for name, value in _leaves(logs) if name not in metrics and _is_number(value)]
    means = iter(_means(model, own) if own else [])

    def reduced(name: str, value: Any) -> Any:
        if name in metrics:
            return metrics[name]
        return next(means) if _is_number(value) else value

    # A step that returns `{m.name: m.result() for m in self.metrics}` has a dict in it.
    return _mapped(logs, reduced)


def _by_shown_name(metrics: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of the metrics that a step shows, by their names in its logs."""
    # A metric whose result is a dict has no value by its own name.
    found = {name: metrics.get(metric, metrics.get(name)) for name, metric in shown.items()}
    return {name: value for name, value in found.items() if value is not None}


def joined(
    returned: Mapping[str, float], metrics: Mapping[str, Any], shown: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the logs of steps that returned means of their own, and updated some of the metrics."""
    if not returned:
        return dict(metrics)
    results = {name: value for name, value in metrics.items() if name in returned and _is_updated(value)}
    return {**returned, **results, **_by_shown_name(metrics, shown)}


def _is_own(name: str, value: Any, model: Any) -> bool:
    """Whether a model's last step has returned by that name what is not the metric's `value`."""
    state = state_of(model)
    # Otherwise a function of the user's own has run the steps.
    if state.has_shown and (state.shown is None or name in state.shown.metrics):
        return False  # though it may be 0
    return not _is_updated(value)


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


def _describe_derived(function: Any, names: Collection[str]) -> str:
    """Returns the sentence for a step that returns what it works out from the results of metrics."""
    return (
        f"{described(function)} works out {', '.join(sorted(names))} from results of metrics, on each "
        "replica from its own, so what is shown is the replicas' mean and may differ from one device's; let "
        "it be the result of a metric of your own"
    )
