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

from raydist.training.replicas import all_reduce
from raydist.training.replicas.replica_share import weighted_gradient
from raydist.training.reporting import reporter


def summed_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients of the global batch, the same on each replica: a collective in a replica context.

    Args:
      gradients: This replica's, as `GradientTape.gradient` returns them: tensors, `tf.IndexedSlices`, Nones.

    Returns:
      Their sums over replicas, in the same order. Of a sparse gradient each row stands there once.
    """
    context = tf.distribute.get_replica_context()
    num_replicas = 1 if context is None else context.num_replicas_in_sync
    present = [weighted_gradient(one, num_replicas) for one in gradients if one is not None]
    if present and context is not None and num_replicas > 1:
        present = all_reduce.sum_over_replicas(present, context)
    found = iter(present)
    return [None if one is None else with_unique_rows(next(found)) for one in gradients]


def note_unique_rows(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Notes that sparse rows are summed for an optimizer of Keras 3, where that changes its updates."""
    if any(isinstance(one, tf.IndexedSlices) for one in gradients) and not _is_linear(optimizer):
        name = type(optimizer).__name__
        reporter.note(
            f"rows of embeddings that a batch looks up several times are summed before {name} gets them, as "
            "tf_keras does, also on one device; Keras 3 without raydist takes each lookup for a gradient of "
            "its own, so weights differ from those of a plain Keras 3 run"
        )


def _is_linear(optimizer: Any) -> bool:
    """Whether an update by the sum of some gradients is the sum of the updates by each."""
    clips = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    return type(optimizer).__name__ == "SGD" and not any(clips)


def with_unique_rows(gradient: Any) -> Any:
    """Returns a sparse gradient with each row once, and the sum of its values; a dense one as it is.

    The rows of several replicas, and of several lookups in one, are concatenated. Keras 3's Adam then
    squares each occurrence by itself (backend/tensorflow/sparse.py, `elementwise_unary`); tf_keras
    sums them, in `optimizer.py`, `_deduplicate_sparse_grad`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        return tf.convert_to_tensor(gradient)  # there are no shapes there that depend on values
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def comes_from_half(gradient: Any) -> bool:
    """Whether a gradient in a graph was computed in float16, and cast for its float32 variable."""
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not tf.is_tensor(tensor) or not hasattr(tensor, "graph"):  # an eager one does not know
        return False
    if tensor.op.type == "Cast":
        return bool(tensor.op.inputs[0].dtype == tf.float16)
    # Of a variable that is used several times, or in a regularizer.
    return tensor.op.type in ("AddN", "AddV2") and any(comes_from_half(one) for one in tensor.op.inputs)


def is_processed(gradient: Any) -> bool:
    """Whether something that is not linear, such as clipping, was done to a gradient in a graph.

    TensorFlow names what a tape computes (eager/backprop.py, `_gradient_function`).
    """
    ahead = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient]
    seen: set[int] = set()
    while ahead:
        tensor = ahead.pop()
        op = getattr(tensor, "op", None)
        if op is None or id(op) in seen or op.name.startswith("gradient_tape/"):
            continue
        if op.type in _NOT_LINEAR:
            return True
        seen.add(id(op))
        ahead += op.inputs
    return False


_NOT_LINEAR = (
    *("L2Loss", "Square", "Sqrt", "Rsqrt", "Pow", "Abs", "Sign"),
    *("Minimum", "Maximum", "ClipByValue", "Select", "SelectV2"),
)


def overflown_as_half(gradient: Any, scale: Any = 1.0) -> Any:
    """Returns a float32 sum with infinity where `scale` times it is more than float16 holds.

    One device sums in float16 over the batch. The replicas' parts are cast before they are added, so that
    they would take a step that one device skips.
    """
    if isinstance(gradient, tf.IndexedSlices):
        values = overflown_as_half(gradient.values, scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    is_over = tf.abs(gradient) * scale > tf.float16.max
    return tf.where(is_over, tf.sign(gradient) * float("inf"), gradient)
