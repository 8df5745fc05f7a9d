"""What all replicas predict, joined in the order of the replicas: tensors of any type and kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster.collectives import is_alone


def joined(parts: Sequence[Any]) -> Any:
    """Returns the rows of some outputs one after the other; of scalars a vector."""
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, [*parts])  # of a tuple it makes a generator, and takes its length
    return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, axis=0)


def of_all_replicas(outputs: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a structure of what `strategy.run` has returned, with the rows of all replicas in each worker.

    A collective if there are several workers.
    """

    def rows(output: Any) -> Any:
        own = joined(strategy.experimental_local_results(output))
        return own if is_alone(strategy) else _of_workers(own, tf_private.launcher_of(strategy.extended))

    return tf.nest.map_structure(rows, outputs)


def _of_workers(own: Any, launcher: Any) -> Any:
    def gather(tensor: Any) -> Any:
        return _gathered(tensor, launcher)

    def gathered() -> Any:
        if isinstance(own, tf.RaggedTensor):
            lengths = [gather(one) for one in own.nested_row_lengths()]
            return tf.RaggedTensor.from_nested_row_lengths(gather(own.flat_values), lengths, validate=False)
        if isinstance(own, tf.SparseTensor):
            return _of_sparse(own, gather)
        return gather(own)

    if not tf.executing_eagerly():
        return gathered()
    # Collectives run in graphs only, also where the user has functions run eagerly.
    return tf.function(gathered, autograph=False).get_concrete_function()()


def _of_sparse(own: tf.SparseTensor, gather: Any) -> tf.SparseTensor:
    shapes, counts = gather(own.dense_shape[None]), gather(tf.shape(own.values)[:1])
    before = tf.repeat(tf.cumsum(shapes[:, 0], exclusive=True), counts)
    indices = gather(own.indices)
    moved = tf.concat([indices[:, :1] + before[:, None], indices[:, 1:]], axis=1)
    shape = tf.concat([tf.reduce_sum(shapes[:, :1], axis=0), tf.reduce_max(shapes[:, 1:], axis=0)], axis=0)
    return tf.SparseTensor(moved, gather(own.values), shape)


def _gathered(tensor: tf.Tensor, launcher: Any) -> tf.Tensor:
    """Returns the rows of all workers' tensors, in the order of the workers."""
    if tensor.dtype == tf.string:
        return _gathered_strings(tensor, launcher)
    sent = tf_private.as_known(tensor)
    found = tf.ensure_shape(launcher.all_gather(sent, 0, None), [None, *sent.shape[1:]])
    return tf_private.from_known(found, tensor.dtype)


def _gathered_strings(tensor: tf.Tensor, launcher: Any) -> tf.Tensor:
    lengths = _gathered(tf.strings.length(tensor), launcher)
    width = tf.reduce_max(tf.concat([tf.reshape(lengths, [-1]), [1]], axis=0))
    codes = _gathered(tf.io.decode_raw(tensor, tf.uint8, fixed_length=width), launcher)
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), tf.cast(codes, tf.int32))
    return tf.strings.substr(tf.strings.reduce_join(letters, axis=-1), tf.zeros_like(lengths), lengths)
