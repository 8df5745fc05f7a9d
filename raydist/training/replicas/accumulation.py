"""One update from the gradients of several batches: how they are grouped, and what each batch adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.replicas import batch_slices
from raydist.training.replicas.all_reduce import values_of
from raydist.training.replicas.gradients import added, comes_from_half, overflowed_halves
from raydist.training.replicas.replica_share import SHARE_TYPE, current, num_replicas, weighted_gradient


@dataclass(frozen=True, kw_only=True)
class BatchGroups:
    """How the batches of a `fit` are grouped; one group makes one step.

    A group never reaches from one epoch into the next: the last one of an epoch may have fewer batches.

    Attributes:
      batches_per_epoch: Where one iterator goes through all epochs, so that the data do not show an
        epoch's end; else None.
    """

    size: int = 1
    batches_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise UnsupportedError(f"ctx.fit got accumulate={self.size!r}; give a whole number from 1 on")

    def num_steps(self, num_batches: int) -> int:
        return -(-num_batches // self.size)

    def next_call(self, step: int, left: int, *, num_batches: int | None) -> tuple[int, int]:
        """Returns how many steps the next call may have, and how many batches each of them.

        Args:
          step: Steps of this pass over the data that are done.
          left: The most steps that it may have, at least 1.
          num_batches: Batches of this pass; None where it has as many as are taken.
        """
        if num_batches is None:
            return left, self.size
        num_full, rest = divmod(num_batches, self.size)
        if step < num_full:
            return min(left, num_full - step), self.size
        return 1, rest or self.size


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
        weighted = [weighted_gradient(one) for one in gradients]
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
        ahead = [values_of(one) for one in sums if one is not None]
        with tf.control_dependencies(ahead):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def apply(self) -> None:
        """Updates the weights, if any batch gave gradients."""
        if self._apply is None:
            return
        sums, halves = [_joined(total) for total in self._sums], self._halves
        if self._loss_scale is not None:  # tf_keras sums no gradients of variables that have none
            halves = [is_half for is_half, one in zip(halves, sums, strict=True) if one is not None]
        with tf_private.changed(current, halves=halves, loss_scale=self._loss_scale):
            self._apply(sums)


def summing_scaled(gradients: Sequence[Any], loss_scale: tf.Tensor) -> AbstractContextManager[None]:
    """Has `overflowed` look, inside, at sums of a batch's gradients, which were divided by `loss_scale`."""
    halves = [comes_from_half(_before_division(one)) for one in gradients if one is not None]
    return tf_private.changed(current, halves=halves, loss_scale=loss_scale)


def halves_of(gradients: Sequence[Any]) -> list[bool]:
    """Returns whether each gradient, or a part of the sum, was computed in float16, and cast."""
    if current.halves is not None:
        return current.halves
    return [comes_from_half(one) for one in gradients]


def overflowed(sums: Sequence[Any]) -> list[Any]:
    """Returns the sums of an update over replicas, and batches, with infinity where one device's overflow.

    It changes nothing but gradients that were divided by a loss scale before they were added.
    """
    halves, scale = current.halves, current.loss_scale
    if halves is None or scale is None:
        return list(sums)
    return overflowed_halves(sums, halves, scale=scale)


def _before_division(gradient: Any) -> Any:
    """Returns a gradient in a graph as it was before a loss scale was taken out of it."""
    tensor = values_of(gradient)
    is_product = tf.is_tensor(tensor) and hasattr(tensor, "graph") and tensor.op.type in ("Mul", "RealDiv")
    return tensor.op.inputs[0] if is_product else tensor


def shares_of(elements: Sequence[Any]) -> list[tf.Tensor]:
    """Returns this replica's share of all examples of an update in each of its batches.

    Args:
      elements: This replica's elements: `Slice`s, or bare batches, of which every replica has as much.
    """
    if isinstance(elements[0], batch_slices.Slice):
        total = tf.add_n([tf.cast(one.num_global, SHARE_TYPE) for one in elements])
        return [tf.math.divide_no_nan(tf.cast(one.num_examples, SHARE_TYPE), total) for one in elements]
    rows = [tf.cast(_num_rows(one), SHARE_TYPE) for one in elements]
    return [tf.math.divide_no_nan(one, tf.add_n(rows) * num_replicas()) for one in rows]


def _num_rows(batch: Any) -> Any:
    components = tf.nest.flatten(batch)
    first = next((one for one in components if one is not None), None)
    if first is None or (isinstance(first, tf.Tensor) and first.shape.rank == 0):
        return 1
    return batch_slices.num_rows(first)


def _added(total: Any, gradient: Any) -> Any:
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):
        return [*(total or ()), gradient]
    return gradient if total is None else total + gradient


def _joined(total: Any) -> Any:
    """Returns sparse gradients as one."""
    return added(total) if isinstance(total, list) else total
