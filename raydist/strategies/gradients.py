"""What happens to gradients between the backward pass and the optimizer's update, for either Keras.

One device adds up all that a variable's gradient is made of before an optimizer sees it. On several
replicas the
same sum has to be complete before anything that is not linear in it: clipping, squaring, asking whether it is
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist.strategies.replica_share import weighted_gradient


def summed_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients of the global batch, the same on each replica: a collective in a replica context.

    Args:
      gradients: This replica's tensors, `tf.IndexedSlices` and Nones, as `GradientTape.gradient` returns
        them.

    Returns:
      Their sums over replicas, in the same order. Of a sparse gradient each row stands there once.
    """
    context = tf.distribute.get_replica_context()
    num_replicas = 1 if context is None else context.num_replicas_in_sync
    present = [weighted_gradient(one, num_replicas) for one in gradients if one is not None]
    if present and context is not None and num_replicas > 1:
        present = context.all_reduce(tf.distribute.ReduceOp.SUM, present)
    found = iter(present)
    return [None if one is None else with_unique_rows(next(found)) for one in gradients]


def with_unique_rows(gradient: Any) -> Any:
    """Returns a sparse gradient in which each row stands once, with the sum of its values; others as they
    are.

    The rows of several replicas, and of several lookups in one, are concatenated. Keras 3's Adam then
    squares each occurrence by itself, and so does all else that is not linear (TF_NOTES 14); tf_keras
    sums them, in `optimizer.py`, `_deduplicate_sparse_grad`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        return tf.convert_to_tensor(gradient)  # there are no shapes there that depend on values
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
