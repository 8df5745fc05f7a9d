"""What happens to gradients between the backward pass and the optimizer's update, for either Keras.

One device adds up all that a variable's gradient is made of before an optimizer sees it. On several
replicas the same sum has to be complete before anything that is not linear in it: clipping, squaring, asking
whether it is finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas import all_reduce
from raydist.training.replicas.replica_share import weighted_gradient
from raydist.training.reporting import reporter


class _Settings:
    sums_rows = False


def configure(*, sums_rows: bool) -> None:
    """Sets whether optimizers of Keras 3 get each row of a sparse gradient once, in this process."""
    _Settings.sums_rows = sums_rows


def summed_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients of the global batch, the same on each replica: a collective in a replica context.

    A sparse gradient has a row for each lookup, in all replicas' examples, as that of one device has:
    optimizers of Keras 3 square each by itself (backend/tensorflow/sparse.py, `elementwise_unary`). If rows
    are summed (`configure`), each stands there once.

    Args:
      gradients: This replica's, as `GradientTape.gradient` returns them: tensors, `tf.IndexedSlices`, Nones.

    Returns:
      Their sums over replicas, in the same order.
    """
    context = tf.distribute.get_replica_context()
    num_replicas = 1 if context is None else context.num_replicas_in_sync
    present = [one for one in gradients if one is not None]
    if context is not None:
        present = [weighted_gradient(one) for one in present]
    if _Settings.sums_rows or isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        present = [with_unique_rows(one) for one in present]
    if present and context is not None and num_replicas > 1:
        present = joined_over_replicas(present, context)
        if _Settings.sums_rows:
            present = [with_unique_rows(one) for one in present]
    found = iter(present)
    return [None if one is None else next(found) for one in gradients]


def joined_over_replicas(gradients: Sequence[Any], context: Any) -> list[Any]:
    """Returns the sums of gradients over replicas, with the rows that one device has: a collective.

    Args:
      gradients: Tensors and `tf.IndexedSlices`.
      context: The replica context.
    """
    # Rows that stand at the same place on each replica can be summed as they are, without their indices.
    is_alike = [is_of_batch(one) and _num_rows(one) is not None for one in gradients]
    sent = [one.values if alike else one for one, alike in zip(gradients, is_alike, strict=True)]
    sums = all_reduce.sum_over_replicas(sent, context)
    return [
        tf.IndexedSlices(total, one.indices, one.dense_shape)
        if alike
        else with_unique_rows(total)
        if is_of_batch(one)
        else total
        for one, total, alike in zip(gradients, sums, is_alike, strict=True)
    ]


def added(gradients: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns the sparse gradient of one batch that holds the batches of these."""
    first = gradients[0]
    if len(gradients) > 1 and is_of_batch(first) and _num_rows(first) is not None:
        return tf.IndexedSlices(tf.add_n([one.values for one in gradients]), first.indices, first.dense_shape)
    values = tf.concat([one.values for one in gradients], axis=0)
    indices = tf.concat([one.indices for one in gradients], axis=0)
    joined = tf.IndexedSlices(values, indices, first.dense_shape)
    return with_unique_rows(joined) if len(gradients) > 1 and is_of_batch(first) else joined


def _num_rows(gradient: tf.IndexedSlices) -> int | None:
    return gradient.indices.shape[0] if gradient.indices.shape.rank else None


def note_unique_rows(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Notes that sparse rows are summed for an optimizer of Keras 3, where that changes its updates."""
    if not _Settings.sums_rows or _is_linear(optimizer):
        return
    if any(isinstance(one, tf.IndexedSlices) for one in gradients):
        name = type(optimizer).__name__
        reporter.note(
            f"rows of embeddings that a batch looks up several times are summed before {name} gets them "
            "(--sum-embedding-rows), as tf_keras does; Keras 3 without raydist takes each lookup for a "
            "gradient of its own, so weights differ from those of a plain Keras 3 run"
        )


def note_unseen_lookups(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Notes rows that were looked up where nothing shows whether it was once for all examples of a batch.

    See `is_of_batch`, which asks a graph.
    """
    is_alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
    if is_alone or _Settings.sums_rows or _is_linear(getattr(optimizer, "inner_optimizer", optimizer)):
        return
    if any(isinstance(one, tf.IndexedSlices) and _may_be_of_batch(one.indices) for one in gradients):
        reporter.note(
            "embeddings are looked up in an eager step, or inside a tf.function of your own: if it is once "
            "for all examples of a batch, such as positions, each replica's part of a row counts as a lookup "
            f"of its own for {type(optimizer).__name__}, so weights differ from those on one device; leave "
            "run_eagerly and the tf.function out, or use --sum-embedding-rows"
        )


def _may_be_of_batch(indices: tf.Tensor) -> bool:
    """Whether indices may be positions: as values, or as the result of a function, they do not say."""
    if not hasattr(indices, "graph"):
        # Positions ascend, and what the examples look up seldom does.
        values = indices.numpy().reshape(-1)
        return len(values) > 1 and bool((values[1:] > values[:-1]).all())
    return any("PartitionedCall" in op.type for op in tf_private.ops_behind(indices))


def note_ignored_rate(optimizer: Any, rate: Any) -> None:
    """Notes that an optimizer of tf_keras does not take the learning rate that it was given as `lr`."""
    name = type(optimizer).__name__
    reporter.note(
        f"{name}(lr={rate}) trains with its default learning rate, because optimizers of tf_keras ignore lr; "
        f"write {name}(learning_rate={rate})"
    )


def note_traced_updates() -> None:
    """Notes what tf_keras's Nadam does on several replicas."""
    reporter.note(
        "tf_keras's Nadam counts its updates while they are traced, so weights depend on how often a step is "
        "traced, and may be others than those of one device; use Adam, or --keras 3"
    )


def _is_linear(optimizer: Any) -> bool:
    """Whether an update by the sum of some gradients is the sum of the updates by each."""
    clips = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    return type(optimizer).__name__ == "SGD" and not any(clips)


def with_unique_rows(gradient: Any) -> Any:
    """Returns a sparse gradient with each row once, and the sum of its values; a dense one as it is.

    tf_keras does so in `optimizer.py`, `_deduplicate_sparse_grad`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        return tf.convert_to_tensor(gradient)  # there are no shapes there that depend on values
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def is_of_batch(gradient: Any) -> bool:
    """Whether a gradient's rows were looked up once for all examples of a batch, as positions are.

    One device then has one row of each, for the whole batch, and each replica has a part of that row. It
    shows in the graph: the indices depend neither on values of the batch nor on how many examples it has.
    """
    if not isinstance(gradient, tf.IndexedSlices) or not hasattr(gradient.indices, "graph"):
        return False
    ahead, seen = [gradient.indices], set[int]()
    while ahead:
        tensor = ahead.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not hasattr(tensor, "graph"):  # an eager one that a function captures
            continue
        op = tensor.op
        if op.type in ("Placeholder", "Arg"):
            outer = tf_private.captured_by(tensor)
            if outer is None:
                return False
            ahead.append(outer)
        elif op.type == "StridedSlice" and op.inputs[0].op.type == "Shape":
            if _is_of_examples(op):
                return False
        elif op.type in _SIZES or "Random" in op.type:
            return False
        elif op.type not in _READS and tf_private.has_state(op.type):
            return False
        elif op.type in _RESHAPES:
            ahead.append(op.inputs[0])
        else:
            ahead += op.inputs
    return True


# Of which the size may be the number of examples; of which only the first input says what is there.
_SIZES = ("Shape", "ShapeN", "Size", "IteratorGetNext", "OptionalGetValue")
_RESHAPES = ("Reshape", "ExpandDims", "Squeeze")
_READS = ("ReadVariableOp", "ResourceGather", "VarHandleOp")


def _is_of_examples(slice_of_shape: Any) -> bool:
    """Whether an operation takes the first number out of a shape, or may do so."""
    begin = tf.get_static_value(slice_of_shape.inputs[1])
    rank = slice_of_shape.inputs[0].op.inputs[0].shape.rank
    return begin is None or rank is None or len(begin) != 1 or int(begin[0]) % rank == 0


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


def overflowed_halves(sums: Sequence[Any], halves: Sequence[bool], *, scale: Any = 1.0) -> list[Any]:
    """Returns the sums, those of `halves` as `overflowed_as_half` has them."""
    return [
        overflowed_as_half(one, scale) if is_half and one is not None else one
        for one, is_half in zip(sums, halves, strict=True)
    ]


def overflowed_as_half(gradient: Any, scale: Any) -> Any:
    """Returns a float32 sum with infinity where `scale` times it is more than float16 holds.

    One device sums in float16 over the batch. The replicas' parts are cast before they are added, so that
    they would take a step that one device skips.
    """
    if isinstance(gradient, tf.IndexedSlices):
        values = overflowed_as_half(gradient.values, scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    is_over = tf.abs(gradient) * scale > tf.float16.max
    return tf.where(is_over, tf.sign(gradient) * float("inf"), gradient)
