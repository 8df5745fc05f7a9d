"""Finds out which metrics of the user's own are wrong on several replicas.

TensorFlow adds up what the replicas have in a metric's variables. That is right for sums and counts, which
all of Keras's metrics are made of, and wrong for a maximum, or for the mean of something that is computed for
a batch as a whole. Before the first step this check gives a metric what the step gives it for a batch, once
as a whole and once in two parts whose variables it adds up.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster.collectives import findings_of_workers
from raydist.training.replicas import (
    code_names,
    gradient_probe,
    loss_rules,
    loss_sentences,
    metric_cells,
    slices,
)
from raydist.training.replicas.replica_share import use_share
from raydist.training.reporting import reporter

logger = logging.getLogger(__name__)

# Relative difference of results that are equal up to rounding.
_TOLERANCE = 1e-3

_looked_at: weakref.WeakSet[Any] = weakref.WeakSet()

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def is_wanted(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether the model has metrics of the user's own that are not known yet, and several replicas."""
    return loss_rules.is_enabled() and strategy.num_replicas_in_sync > 1 and bool(_unknown(model))


def check(model: Any, step: Callable[[Any], Any], element: Any) -> None:
    """Notes the metrics whose results on several replicas are not those of one device. A collective.

    Args:
      step: The model's `train_step` or `test_step` as its Keras traces it, for one replica's batch.
      element: The first element of the distributed data.
    """
    strategy = model.distribute_strategy
    metrics = _unknown(model)
    _looked_at.update(metrics)
    step, batch = slices.on_own_rows(strategy, step, element)
    found: Sequence[tuple[float, float]] = [(0.0, 0.0)] * len(metrics)
    if int(slices.num_rows(batch)) > 1:
        found = _differences(metrics, model, step, batch)
    # One decision for all: each worker has looked at other examples.
    flat = findings_of_workers(strategy, [value for one in found for value in one])
    for metric, is_wrong, is_unknown in zip(metrics, flat[::2], flat[1::2], strict=True):
        where = loss_sentences.described(_source(metric))
        if is_wrong:
            reporter.note(
                f"metric {metric.name} from {where} is no sum or mean over examples: several replicas' "
                "values of it cannot be added up, so what it shows depends on their number; compute it from "
                "ctx.predict"
            )
        elif is_unknown:
            reporter.note(
                f"whether metric {metric.name} from {where} is right on several replicas could not be shown, "
                "because it could not be run on a part of a batch; compute it from ctx.predict to be sure"
            )


def note_sums(model: Any) -> None:
    """Notes what the metrics of the user's own have to be where no batch is at hand to try them on."""
    if metrics := _unknown(model):
        _looked_at.update(metrics)
        named = ", ".join(f"{one.name} from {loss_sentences.described(_source(one))}" for one in metrics)
        reporter.note(
            f"what the workers have of the metrics {named} is added up, which is right for sums and means "
            "over examples alone"
        )


def _unknown(model: Any) -> list[Any]:
    inner = [one for metric in model.metrics for one in (metric, *getattr(metric, "metrics", ()))]
    own = [one for one in inner if not code_names.is_keras(_source(one)) and one not in _looked_at]
    return list({id(one): one for one in own}.values())


def _source(metric: Any) -> Any:
    """Returns the class of a metric, or the function that it takes the mean of."""
    function = getattr(metric, "_fn", None)
    return type(metric) if function is None or not code_names.is_keras(type(metric)) else function


def _differences(
    metrics: Sequence[Any], model: Any, step: Callable[[Any], Any], batch: Any
) -> list[tuple[float, float]]:
    """Returns of each metric whether it is wrong, and whether that is unknown, as 0.0 or 1.0."""
    spec = tf.nest.map_structure(slices.relaxed_spec, batch)
    signature = [tf.TensorSpec(one.shape, one.dtype) for one in tf.nest.flatten(spec, expand_composites=True)]
    probe = gradient_probe.Probe(model.distribute_strategy)
    failed: set[int] = set()

    def results(*flat: tf.Tensor) -> list[tf.Tensor]:
        whole = tf.nest.pack_sequence_as(spec, list(flat), expand_composites=True)
        with tf_private.as_one_of(1), use_share(None, is_model_step=True), _recorded(metrics) as calls:
            probe.collect(lambda: step(whole))
        found: list[tf.Tensor] = []
        for index, metric in enumerate(metrics):
            try:
                found += _results(metric, calls[index])
            except Exception as error:  # the user's code
                logger.info("metric %s could not be checked: %s", metric.name, error, exc_info=True)
                failed.add(index)
                found += [tf.zeros([1]), tf.zeros([1])]
        return found

    def undrawn(*flat: tf.Tensor) -> list[tf.Tensor]:
        # A metric that draws, to break ties for example, would differ from itself.
        with tf_private.constant_draws(lambda: None):
            return results(*flat)

    try:
        with gradient_probe.counters_kept(model):
            run, _ = tf_private.without_effects(undrawn, signature)
        values = [one.numpy() for one in run(*tf.nest.flatten(batch, expand_composites=True))]
    except Exception as error:  # the user's code
        logger.info("the metrics of %s could not be checked: %s", model.name, error, exc_info=True)
        return [(0.0, 1.0)] * len(metrics)
    pairs = zip(values[::2], values[1::2], strict=True)
    is_equal = [np.allclose(one, other, rtol=_TOLERANCE, atol=1e-6, equal_nan=True) for one, other in pairs]
    return [(float(not equal), float(index in failed)) for index, equal in enumerate(is_equal)]


@contextlib.contextmanager
def _recorded(metrics: Sequence[Any]) -> Iterator[list[list[_Call]]]:
    """Keeps what the metrics are updated with inside the block, which changes nothing."""
    calls: list[list[_Call]] = [[] for _ in metrics]
    before = [vars(metric).get("update_state") for metric in metrics]

    def recorder(kept: list[_Call]) -> Callable[..., None]:
        return lambda *args, **kwargs: kept.append((args, kwargs))

    try:
        for metric, kept in zip(metrics, calls, strict=True):
            vars(metric)["update_state"] = recorder(kept)
        yield calls
    finally:
        for metric, update_state in zip(metrics, before, strict=True):
            if update_state is None:
                del vars(metric)["update_state"]
            else:
                vars(metric)["update_state"] = update_state


def _results(metric: Any, calls: Sequence[_Call]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a metric's results, as vectors: after the calls, and of what two parts of them add up to."""
    slots = metric_cells.slots_of(metric)
    with tf_private.as_one_of(1):
        with metric_cells.swapped(slots, [slot.zeros() for slot in slots]) as cells:
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
    slots: Sequence[metric_cells.Slot],
    state: Sequence[tf.Tensor],
    calls: Sequence[_Call],
    *,
    part: int | None,
) -> list[tf.Tensor]:
    """Returns a metric's state after the calls, or after one of the two parts of them."""
    with metric_cells.swapped(slots, state) as cells:
        for call in calls:
            args, kwargs = (
                call if part is None else tf.nest.map_structure(lambda one: _part_of(one, part), call)
            )
            with use_share(None if part is None else _share_of(call, part), is_model_step=True):
                metric.update_state(*args, **kwargs)
        return [cell.total() for cell in cells]


def _result(metric: Any, slots: Sequence[metric_cells.Slot], state: Sequence[tf.Tensor]) -> tf.Tensor:
    with metric_cells.swapped(slots, state):
        values = tf.nest.flatten(metric.result())
    return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in values], axis=0)


def _has_rows(value: Any) -> bool:
    """Whether it is a tensor of as many rows as a batch happens to have."""
    return isinstance(value, tf.Tensor) and value.shape.rank not in (None, 0) and value.shape[0] is None


def _share_of(call: _Call, part: int) -> tf.Tensor:
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
