"""One update from the gradients of several batches: what a replica keeps of each until the last one.

The weight of a batch is its share of all examples of the update, over batches and replicas, just as a
replica's share of one batch. So the sums over batches and replicas are the gradient of one batch that holds
them all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from raydist.training.replicas import slices
from raydist.training.replicas.gradients import added, comes_from_half, overflown_as_half
from raydist.training.replicas.replica_share import SHARE_TYPE, weighted_gradient


class Group(NamedTuple):
    """The batches of one update: elements of a dataset, or those of one replica."""

    batches: tuple[Any, ...]


class Accumulated:
    """The gradients of an update, as far as the replica that is being traced has come."""

    def __init__(self) -> None:
        self._apply: Callable[[list[Any]], object] | None = None
        self._sums: list[Any] = []  # tensors, lists of `tf.IndexedSlices`, Nones
        self._halves: list[bool] = []
        self._loss_scale: tf.Tensor | None = None

    def add(
        self,
        gradients: Sequence[Any],
        apply: Callable[[list[Any]], object],
        *,
        loss_scale: tf.Tensor | None = None,
    ) -> None:
        """Adds those of a batch, in the place of `apply(gradients)`, which updates the weights.

        Args:
          loss_scale: What they were divided by; None where they were not, or will be by `apply`.
        """
        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        weighted = [weighted_gradient(one, num_replicas) for one in gradients]
        raw = gradients if loss_scale is None else [_before_division(one) for one in gradients]
        halves = [one is not None and comes_from_half(one) for one in raw]
        sums = self._sums or [None] * len(weighted)
        self._sums = [_added(total, one) for total, one in zip(sums, weighted, strict=True)]
        before = self._halves or [False] * len(halves)
        self._halves = [one or other for one, other in zip(before, halves, strict=True)]
        self._apply, self._loss_scale = apply, loss_scale

    def after(self, element: Any) -> Any:
        """Returns `element`, once the gradients so far are there.

        The batches do not depend on each other: TensorFlow would compute them side by side, and hold the
        activations of all of them in memory.
        """
        sums = [one for total in self._sums for one in (total if isinstance(total, list) else [total])]
        ahead = [one.values if isinstance(one, tf.IndexedSlices) else one for one in sums if one is not None]
        with tf.control_dependencies(ahead):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def apply(self) -> None:
        """Updates the weights, if any batch gave gradients."""
        if self._apply is None:
            return
        sums, halves = [_joined(total) for total in self._sums], self._halves
        if self._loss_scale is not None:  # tf_keras sums no gradients of variables that have none
            halves = [is_half for is_half, one in zip(halves, sums, strict=True) if one is not None]
        with _summing(halves, self._loss_scale):
            self._apply(sums)


class _TracedReplica(threading.local):
    """Of the replica that is being traced; MirroredStrategy traces each replica in a thread of its own."""

    accumulated: Accumulated | None = None
    halves: list[bool] | None = None
    loss_scale: tf.Tensor | None = None


_current = _TracedReplica()


@contextlib.contextmanager
def collecting(accumulated: Accumulated) -> Iterator[None]:
    """Has optimizers give their gradients to `accumulated` inside, and update nothing."""
    _current.accumulated = accumulated
    try:
        yield
    finally:
        _current.accumulated = None


@contextlib.contextmanager
def _summing(halves: list[bool], loss_scale: tf.Tensor | None) -> Iterator[None]:
    _current.halves, _current.loss_scale = halves, loss_scale
    try:
        yield
    finally:
        _current.halves = _current.loss_scale = None


@contextlib.contextmanager
def summing_scaled(gradients: Sequence[Any], loss_scale: tf.Tensor) -> Iterator[None]:
    """Has `overflown` look, inside, at sums of a batch's gradients, which were divided by `loss_scale`."""
    halves = [comes_from_half(_before_division(one)) for one in gradients if one is not None]
    with _summing(halves, loss_scale):
        yield


def active() -> Accumulated | None:
    """Returns what the optimizers of the replica being traced give their gradients to, if anything."""
    return _current.accumulated


def halves_of(gradients: Sequence[Any]) -> list[bool]:
    """Returns whether each gradient, or a part of the sum, was computed in float16, and cast."""
    if _current.halves is not None:
        return _current.halves
    return [comes_from_half(one) for one in gradients]


def overflown(sums: Sequence[Any]) -> list[Any]:
    """Returns the sums of an update over replicas, and batches, with infinity where one device's overflow.

    It changes nothing but gradients that were divided by a loss scale before they were added.
    """
    halves, scale = _current.halves, _current.loss_scale
    if halves is None or scale is None:
        return list(sums)
    return [
        overflown_as_half(one, scale) if is_half and one is not None else one
        for one, is_half in zip(sums, halves, strict=True)
    ]


def _before_division(gradient: Any) -> Any:
    """Returns a gradient in a graph as it was before a loss scale was taken out of it."""
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    is_product = tf.is_tensor(tensor) and hasattr(tensor, "graph") and tensor.op.type in ("Mul", "RealDiv")
    return tensor.op.inputs[0] if is_product else tensor


def shares_of(elements: Sequence[Any], num_replicas: int) -> list[tf.Tensor]:
    """Returns this replica's share of all examples of an update in each of its batches.

    Args:
      elements: This replica's elements: `Slice`s, or bare batches, of which every replica has as much.
    """
    if isinstance(elements[0], slices.Slice):
        total = tf.add_n([tf.cast(one.num_global, SHARE_TYPE) for one in elements])
        return [tf.math.divide_no_nan(tf.cast(one.num_examples, SHARE_TYPE), total) for one in elements]
    rows = [tf.cast(_num_rows(one), SHARE_TYPE) for one in elements]
    return [tf.math.divide_no_nan(one, tf.add_n(rows) * num_replicas) for one in rows]


def _num_rows(batch: Any) -> Any:
    components = tf.nest.flatten(batch)
    first = next((one for one in components if one is not None), None)
    if first is None or (isinstance(first, tf.Tensor) and first.shape.rank == 0):
        return 1
    return slices.num_rows(first)


def _added(total: Any, gradient: Any) -> Any:
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):
        return [*(total or ()), gradient]
    return gradient if total is None else total + gradient


def _joined(total: Any) -> Any:
    """Returns sparse gradients as one."""
    return added(total) if isinstance(total, list) else total
