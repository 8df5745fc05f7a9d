"""What happens to gradients between the backward pass and the optimizer's update, for either Keras.

One device adds up all that a variable's gradient is made of before an optimizer sees it. On several
replicas the same sum has to be complete before anything that is not linear in it: clipping, squaring, asking
whether it is finite.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist import op_types, tf_private
from raydist.training.replicas import all_reduce
from raydist.training.replicas.replica_share import weighted_gradient
from raydist.training.reporting import reporter


def summed_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients of the global batch, the same on each replica: a collective in a replica context.

    A sparse gradient has a row for each lookup, in all replicas' examples, as that of one device has:
    optimizers of Keras 3 square each by itself (backend/tensorflow/sparse.py, `elementwise_unary`).

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
    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        present = [with_unique_rows(one) for one in present]
    if present and context is not None and num_replicas > 1:
        present = joined_over_replicas(present, context)
    found = iter(present)
    return [None if one is None else next(found) for one in gradients]


def joined_over_replicas(gradients: Sequence[Any], context: Any) -> list[Any]:
    """Returns the sums of gradients over replicas, with the rows that one device has: a collective."""
    parts = [_parts(one) if isinstance(one, tf.IndexedSlices) else [(_Rows.SAME, one)] for one in gradients]
    flat = [part for of_gradient in parts for part in of_gradient]
    # Rows that stand at the same place on each replica can be summed as they are, without their indices.
    is_alike = [isinstance(one, tf.IndexedSlices) and _stands_still(rows, one) for rows, one in flat]
    sent = [one.values if alike else one for (_, one), alike in zip(flat, is_alike, strict=True)]
    sums = iter(
        tf.IndexedSlices(total, one.indices, one.dense_shape)
        if alike
        else total
        if rows is _Rows.EACH
        else with_unique_rows(total)
        for (rows, one), alike, total in zip(
            flat, is_alike, all_reduce.sum_over_replicas(sent, context), strict=True
        )
    )
    return [_concatenated([next(sums) for _ in of_gradient]) for of_gradient in parts]


def added(gradients: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns the sparse gradient of one batch that holds the batches of these."""
    if len(gradients) == 1:
        return gradients[0]
    # One step was traced for each batch, so they consist of the same parts.
    of_batches = zip(*map(_parts, gradients), strict=True)
    return _concatenated([_added_part(*zip(*part, strict=True)) for part in of_batches])


def _added_part(kinds: Sequence[_Rows], parts: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    first = parts[0]
    if _stands_still(kinds[0], first):
        return tf.IndexedSlices(tf.add_n([one.values for one in parts]), first.indices, first.dense_shape)
    joined = _concatenated(parts)
    return joined if kinds[0] is _Rows.EACH else with_unique_rows(joined)


def _concatenated(gradients: Sequence[Any]) -> Any:
    if len(gradients) == 1:
        return gradients[0]
    values = tf.concat([one.values for one in gradients], axis=0)
    indices = tf.concat([one.indices for one in gradients], axis=0)
    return tf.IndexedSlices(values, indices, gradients[0].dense_shape)


def _parts(gradient: tf.IndexedSlices) -> list[tuple[_Rows, tf.IndexedSlices]]:
    """Returns a sparse gradient in parts, each with how often one device has its rows.

    A table that is used several times has the rows of each use, one after the other.
    """
    uses = [(_rows(one), one) for one in _uses(gradient.indices)]
    kinds = {rows for rows, _ in uses}
    if len(uses) == 1 or kinds == {_Rows.EACH}:
        return [(uses[0][0], gradient)]
    sizes = [one.shape.num_elements() for _, one in uses]
    sizes = sizes if None not in sizes else [tf.size(one) for _, one in uses]
    values = tf.split(gradient.values, sizes, num=len(uses))
    return [
        (rows, tf.IndexedSlices(part, tf.reshape(one, [-1]), gradient.dense_shape))
        for (rows, one), part in zip(uses, values, strict=True)
    ]


def _stands_still(rows: _Rows, gradient: tf.IndexedSlices) -> bool:
    """Whether the rows stand at the same places on each replica."""
    return rows is _Rows.SAME and gradient.indices.shape.num_elements() is not None


def note_unseen_lookups(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Notes rows that were looked up where nothing shows whether it was once for all examples of a batch.

    See `_rows`, which asks a graph.
    """
    is_alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
    if is_alone or _is_linear(getattr(optimizer, "inner_optimizer", optimizer)):
        return
    if any(isinstance(one, tf.IndexedSlices) and _may_be_of_batch(one.indices) for one in gradients):
        reporter.note(
            "raydist cannot see whether rows of embeddings are looked up once for all examples of a batch, "
            "as positions and unique words are: the step is eager, or computes their indices from unique "
            f"ones. Then {type(optimizer).__name__} gets each replica's part of "
            "such a row as a lookup of its own, so weights differ from those on one device. Leave "
            "run_eagerly out, or use --keras legacy"
        )


def _may_be_of_batch(indices: tf.Tensor) -> bool:
    """Whether rows may be looked up once a batch, though nothing shows it."""
    if not hasattr(indices, "graph"):
        # Positions and unique words do not repeat, and what examples look up often does.
        values = indices.numpy().reshape(-1)
        return len(values) > 1 and len(set(values.tolist())) == len(values)
    if any(op.type in op_types.CALLS for op in tf_private.ops_behind(indices)):
        return True
    return any(_rows(one) is _Rows.EACH and _comes_from_unique(one) for one in _uses(indices))


def _comes_from_unique(indices: tf.Tensor) -> bool:
    """Whether indices are computed of such as do not repeat, one from each, or come out of a loop."""
    tensor = indices
    while hasattr(tensor, "graph") and tensor.op.type in op_types.SAME_ORDER:
        tensor = tensor.op.inputs[0]
    if not hasattr(tensor, "graph") or tensor.op.type in op_types.LOOPS | op_types.CONDITIONS:
        return hasattr(tensor, "graph")
    ahead, seen = [tensor], set[int]()
    while ahead:
        tensor = ahead.pop()
        if id(tensor) in seen or not hasattr(tensor, "graph"):
            continue
        seen.add(id(tensor))
        op = tensor.op
        if _gives_unique(tensor):
            return True
        if op.type in op_types.GATHERS:  # one for each that is asked for
            ahead += op.inputs[:2] if _rows(op.inputs[1]) is not _Rows.EACH else ()
        elif op.type in op_types.SAME_ORDER | op_types.CHOICES:
            ahead.append(op.inputs[0])
        elif op.type not in op_types.OUTPUT_OF_UNIQUE.keys() | op_types.SIZES_OF_BATCHES:
            ahead += op.inputs
    return False


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


class _Rows(enum.Enum):
    """How often one device has a row of a sparse gradient that a batch looks up."""

    EACH = "once for each lookup"
    UNIQUE = "once a batch, if one of its examples looks it up"
    SAME = "once a batch, whichever examples it has, as positions"


def has_rows_of_batch(gradient: Any) -> bool:
    """Whether one device has some rows of a gradient once a batch, of which each replica has a part."""
    if not isinstance(gradient, tf.IndexedSlices):
        return False
    return any(_rows(one) is not _Rows.EACH for one in _uses(gradient.indices))


def _uses(indices: tf.Tensor) -> list[tf.Tensor]:
    """Returns what indices are concatenated from: where a table is used several times, those of each use."""
    inner = indices
    while hasattr(inner, "graph"):
        op = inner.op
        if op.type == "ConcatV2" and inner.shape.rank == 1:
            return [use for one in op.inputs[:-1] for use in _uses(one)]
        if op.type not in op_types.SAME_ORDER:
            break
        inner = op.inputs[0]
    return [indices]


def _rows(indices: tf.Tensor) -> _Rows:
    """Returns how often one device has the rows of these indices, as the graph shows it."""
    if not hasattr(indices, "graph"):
        return _Rows.EACH
    if _is_of_batch(indices):
        return _Rows.SAME
    return _Rows.UNIQUE if _are_unique(indices) else _Rows.EACH


def _are_unique(indices: tf.Tensor) -> bool:
    """Whether no index stands there twice, whatever the examples look up."""
    tensor = indices
    while hasattr(tensor, "graph") and not _gives_unique(tensor):
        op = tensor.op
        if op.type in op_types.GATHERS:  # a choice of them
            return all(map(_are_unique, op.inputs[:2]))
        if op.type in op_types.SHIFTS:
            is_scalar = op.inputs[1].shape.rank == 0 and _is_of_batch(op.inputs[1])
            if not is_scalar:
                return False
        elif op.type not in op_types.SAME_ORDER | op_types.CHOICES:
            return False
        tensor = op.inputs[0]
    return hasattr(tensor, "graph")


def _gives_unique(tensor: tf.Tensor) -> bool:
    op = tensor.op
    if op.type == "Where":
        return bool(op.inputs[0].shape.rank == 1)
    return op_types.OUTPUT_OF_UNIQUE.get(op.type) == tensor.value_index


def _is_of_batch(indices: tf.Tensor) -> bool:
    """Whether rows were looked up once for all examples of a batch, as positions are.

    One device then has one row of each, for the whole batch, and each replica has a part of that row. It
    shows in the graph: the indices depend neither on values of the batch nor on how many examples it has.
    """
    ahead, seen = [indices], set[int]()
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
        elif op.type in op_types.SIZES_OF_BATCHES or op_types.draws(op.type):
            return False
        elif op.type not in op_types.READS and tf_private.has_state(op.type):
            return False
        elif op.type in op_types.RESHAPES:
            ahead.append(op.inputs[0])
        else:
            ahead += op.inputs
    return True


def _is_of_examples(slice_of_shape: Any) -> bool:
    """Whether an operation takes the first number out of a shape, or may do so."""
    begin = tf.get_static_value(slice_of_shape.inputs[1])
    rank = slice_of_shape.inputs[0].op.inputs[0].shape.rank
    return begin is None or rank is None or len(begin) != 1 or int(begin[0]) % rank == 0


def comes_from_half(gradient: Any) -> bool:
    """Whether a gradient in a graph was computed in float16, and cast for its float32 variable."""
    tensor = all_reduce.values_of(gradient)
    if not tf.is_tensor(tensor) or not hasattr(tensor, "graph"):  # an eager one does not know
        return False
    if tensor.op.type == "Cast":
        return bool(tensor.op.inputs[0].dtype == tf.float16)
    # Of a variable that is used several times, or in a regularizer.
    return tensor.op.type in ("AddN", "AddV2") and any(comes_from_half(one) for one in tensor.op.inputs)


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

    def overflowed(values: tf.Tensor) -> tf.Tensor:
        is_over = tf.abs(values) * scale > tf.float16.max
        return tf.where(is_over, tf.sign(values) * float("inf"), values)

    return all_reduce.with_values(gradient, overflowed)
