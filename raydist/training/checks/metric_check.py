"""Finds out which metrics of the user's own are wrong on several replicas.

In come the updates that a step's rehearsal has recorded; out go notes on the run. loss_rules.py
calls `check` before the first step; on a parameter server parameter_server/ has metrics compute in closures.
A metric's variables are swapped for tensors, so that updating a metric is a function of its state.
"""

from __future__ import annotations

import itertools
import logging
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.checks import rehearsal, step_check, step_rules
from raydist.training.checks.rehearsal import MetricCall
from raydist.training.cluster.collectives import findings_of_workers
from raydist.training.replicas import batch_slices, step_logs
from raydist.training.replicas.replica_share import use_share
from raydist.training.reporting import reporter
from raydist.training.user_code import code_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slot:
    """Where a metric holds a variable: `holder.name` is `variable`."""

    holder: Any
    name: str
    variable: tf.Variable

    def zeros(self) -> tf.Tensor:
        return tf.zeros(self.variable.shape, self.variable.dtype)


def slots_of(metric: Any) -> list[Slot]:
    """Returns where a metric of either Keras, and those inside of it, hold their variables, each once.

    A variable that a metric of tf_keras keeps in a list is not found.
    """
    slots: dict[int, Slot] = {}
    variables = metric.variables
    for variable in variables:
        if not isinstance(variable, tf.Variable):  # Keras 3 wraps it
            slots[id(variable)] = Slot(variable, "_value", variable.value)
    if not slots and variables:
        for holder in metric._flatten_layers():  # a metric may hold others
            for name, value in vars(holder).items():
                if any(value is variable for variable in variables):
                    slots[id(value)] = Slot(holder, name, value)
    return list(slots.values())


@contextmanager
def swapped(slots: Sequence[Slot], state: Sequence[tf.Tensor]) -> Iterator[list[Cell]]:
    """Has the metrics find cells in place of their variables inside the block, which begin with `state`."""
    cells = [Cell(slot.variable, value) for slot, value in zip(slots, state, strict=True)]
    swaps = ((slot.holder, slot.name, cell) for slot, cell in zip(slots, cells, strict=True))
    # What a tf.function would keep a trace of is wrong once the variables are back.
    with tf_private.own_attributes(swaps), tf_private.inlined_functions():
        yield cells


def _of_value(operator: str) -> Any:
    """Returns a method of a cell that is an operator of its value."""
    return lambda cell, other: getattr(cell.read_value(), operator)(other)


class Cell:
    """Stands for a metric's variable while something is traced: one tensor for each replica."""

    def __init__(self, variable: tf.Variable, value: tf.Tensor) -> None:
        self.name = variable.name
        self.dtype = variable.dtype
        self.shape = variable.shape
        # The others begin with nothing: the parts of the replicas are summed.
        self._values: dict[int, tf.Tensor] = {0: value}

    def total(self) -> tf.Tensor:
        return tf.add_n(list(self._values.values())) if len(self._values) > 1 else self._values[0]

    def read_value(self) -> tf.Tensor:
        return self._values.setdefault(_replica(), tf.zeros(self.shape, self.dtype))

    value = read_value

    def numpy(self) -> np.ndarray:
        return self.read_value().numpy()

    def assign(self, value: Any, **options: object) -> tf.Tensor:
        self._values[_replica()] = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self.read_value()

    def assign_add(self, delta: Any, **options: object) -> tf.Tensor:
        return self.assign(self.read_value() + tf.cast(delta, self.dtype))

    def assign_sub(self, delta: Any, **options: object) -> tf.Tensor:
        return self.assign(self.read_value() - tf.cast(delta, self.dtype))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.read_value()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    __getitem__ = _of_value("__getitem__")
    __add__, __radd__ = _of_value("__add__"), _of_value("__radd__")
    __sub__, __rsub__ = _of_value("__sub__"), _of_value("__rsub__")
    __mul__, __rmul__ = _of_value("__mul__"), _of_value("__rmul__")
    __truediv__, __rtruediv__ = _of_value("__truediv__"), _of_value("__rtruediv__")


def _replica() -> int:
    context = tf.distribute.get_replica_context()
    return 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))


# Relative difference of results that are equal up to rounding.
_TOLERANCE = 1e-3

_looked_at: weakref.WeakSet[Any] = weakref.WeakSet()


def is_wanted(model: Any) -> bool:
    """Whether several replicas have metrics still to be checked: the user's, or by Keras's Dice."""
    if not rehearsal.is_enabled() or model.distribute_strategy.num_replicas_in_sync == 1:
        return False
    return bool(unknown(model)) or _makes_metrics_later(model)


def _makes_metrics_later(model: Any) -> bool:
    """Whether tf_keras will make metrics in the first step, of what `compile` was given of the user's."""
    compiled = getattr(model, "compiled_metrics", None)
    given = tf.nest.flatten(
        [getattr(compiled, "_user_metrics", ()), getattr(compiled, "_user_weighted_metrics", ())]
    )
    own = (one for one in given if one is not None and not isinstance(one, str))
    return not getattr(compiled, "built", True) and any(
        _may_compare(one if isinstance(one, types.FunctionType) else _source(one)) for one in own
    )


def check(model: Any, checked: step_check.StepCheck | None) -> None:
    """Notes the metrics whose results on several replicas are not those of one device. A collective.

    Args:
      checked: A step of the model's, in which the metrics that are `unknown` were watched; None where it
        could not be traced.
    """
    strategy = model.distribute_strategy
    metrics = unknown(model)
    _looked_at.update(metrics)
    found = [(0.0, 1.0)] * len(metrics)
    if checked is not None:
        try:
            found = _differences(metrics, checked)
        except Exception as error:  # the user's code, for another number of replicas
            step_rules.report_failure(f"the metrics of {model.name}", error)
    # One decision for all: each worker has looked at other examples.
    flat = findings_of_workers(strategy, [value for one in found for value in one])
    for metric, is_wrong, is_unknown in zip(metrics, flat[::2], flat[1::2], strict=True):
        where = code_names.described(_source(metric))
        if is_wrong:
            reporter.note(
                f"metric {metric.name} from {where} is not a sum or mean over examples: several replicas' "
                "values of it cannot be added up, so what it shows depends on their number; compute it from "
                "ctx.predict"
            )
        elif is_unknown:
            reporter.note(
                f"whether metric {metric.name} from {where} is right on several replicas could not be shown, "
                "because it could not be run on a part of a batch; compute it from ctx.predict to be sure"
            )


def take_for_known(model: Any) -> None:
    """Takes the metrics for looked at, as another process did."""
    _looked_at.update(unknown(model))


def note_sums(model: Any) -> None:
    """Notes what the metrics of the user's own have to be where no batch is at hand to try them on."""
    if metrics := unknown(model):
        _looked_at.update(metrics)
        named = ", ".join(f"{one.name} from {code_names.described(_source(one))}" for one in metrics)
        reporter.note(
            f"what the workers have of the metrics {named} is added up, which is right for sums and means "
            "over examples alone"
        )


def unknown(model: Any) -> list[Any]:
    """Returns the metrics of a model that were not looked at, of those that may be no sums over examples."""
    inner = step_logs.inner_metrics(model)
    own = [one for one in inner if _may_compare(_source(one)) and one not in _looked_at]
    return list({id(one): one for one in own}.values())


def _may_compare(source: Any) -> bool:
    return not code_names.is_keras(source) or code_names.takes_whole_batch(source)


def _source(metric: Any) -> Any:
    """Returns the class of a metric, or the function that it takes the mean of."""
    function = getattr(metric, "_fn", None)
    return type(metric) if function is None or not code_names.is_keras(type(metric)) else function


def _differences(metrics: Sequence[Any], checked: step_check.StepCheck) -> list[tuple[float, float]]:
    """Returns of each metric whether it is wrong, and whether that is unknown, as 0.0 or 1.0."""
    if int(batch_slices.num_rows(checked.batch)) <= 1:  # which has no parts
        return [(0.0, 0.0)] * len(metrics)
    if checked.has_fixed_rows:  # which would be told from other sizes of tensors by nothing
        return [(0.0, 1.0)] * len(metrics)
    whole = checked.of_whole
    tensors: list[tf.Tensor] = []
    failed: set[int] = set()
    # A metric that draws, to break ties for example, would differ from itself.
    with whole.graph.as_default(), tf_private.constant_draws(lambda constant: None):
        for index, (metric, calls) in enumerate(zip(metrics, whole.metric_calls, strict=True)):
            try:
                tensors += _results(metric, calls)
            except Exception as error:  # the user's code
                logger.info("metric %s could not be checked: %s", metric.name, error, exc_info=True)
                failed.add(index)
                tensors += [tf.zeros([1]), tf.zeros([1])]
    values = whole.computed(tensors, checked.batch)
    pairs = itertools.islice(zip(values[::2], values[1::2], strict=False), len(metrics))
    is_equal = [np.allclose(one, other, rtol=_TOLERANCE, atol=1e-6, equal_nan=True) for one, other in pairs]
    return [(float(not equal), float(index in failed)) for index, equal in enumerate(is_equal)]


def _results(metric: Any, calls: Sequence[MetricCall]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a metric's results, as vectors: after the calls, and of what two parts of them add up to."""
    slots = slots_of(metric)
    with tf_private.as_one_of(1):
        with swapped(slots, [slot.zeros() for slot in slots]) as cells:
            metric.reset_state()
            first = [cell.total() for cell in cells]
        whole = _after(metric, slots, first, calls, part=None)
    # A reset gives each of the replicas its part (distribute/values_util.py, `on_read_assign_cross_replica`).
    halves = [tf.cast(tf.cast(one, tf.float64) / 2, one.dtype) for one in first]
    with tf_private.as_one_of(2):
        parts = [_after(metric, slots, halves, calls, part=part) for part in (0, 1)]
    with tf_private.as_one_of(1):
        merged = [one + other for one, other in zip(*parts, strict=True)]
        return _result(metric, slots, whole), _result(metric, slots, merged)


def _after(
    metric: Any,
    slots: Sequence[Slot],
    state: Sequence[tf.Tensor],
    calls: Sequence[MetricCall],
    *,
    part: int | None,
) -> list[tf.Tensor]:
    """Returns a metric's state after the calls, or after one of the two parts of them."""
    with swapped(slots, state) as cells:
        for call in calls:
            args, kwargs = (
                call if part is None else tf.nest.map_structure(lambda one: _part_of(one, part), call)
            )
            with use_share(None if part is None else _share_of(call, part), is_model_step=True):
                metric.update_state(*args, **kwargs)
        return [cell.total() for cell in cells]


def _result(metric: Any, slots: Sequence[Slot], state: Sequence[tf.Tensor]) -> tf.Tensor:
    with swapped(slots, state):  # to its end: a result may be a variable itself
        values = tf.nest.flatten(metric.result())
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in values], axis=0)


def _has_rows(value: Any) -> bool:
    """Whether it is a tensor of as many rows as a batch happens to have."""
    return isinstance(value, tf.Tensor) and value.shape.rank not in (None, 0) and value.shape[0] is None


def _share_of(call: MetricCall, part: int) -> tf.Tensor:
    rows = next((one for one in tf.nest.flatten(call) if _has_rows(one)), None)
    first = tf.constant(1 / 3, tf.float64) if rows is None else _cut(rows) / tf.shape(rows)[0]
    return first if part == 0 else 1 - first


def _part_of(value: Any, part: int) -> Any:
    if not _has_rows(value):
        return value
    return value[: _cut(value)] if part == 0 else value[_cut(value) :]


def _cut(rows: tf.Tensor) -> tf.Tensor:
    """Returns where to cut: into parts of different sizes, which tell a mean of means from a mean."""
    return tf.maximum(tf.shape(rows)[0] // 3, 1)
