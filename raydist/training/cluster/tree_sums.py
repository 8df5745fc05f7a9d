"""Adds up the values of virtual replicas by the tree of replica_tree.py, in a worker and between workers.

Workers send each other the sums of the largest subtrees that they have whole. Small ones go to all; of large
ones each worker gets a chunk, which it adds up for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster import replica_tree

# Fewer bytes are gathered whole, which takes one collective instead of two.
_MOST_GATHERED_BYTES = 1 << 16


class TreeSums(tf.distribute.CrossDeviceOps):
    """Adds the replicas' values by the tree, first those of this worker and then the workers' parts of it."""

    def __init__(
        self,
        num_replicas: int,
        *,
        own: range,
        replicas_of_workers: Sequence[range],
        launcher: Any,
    ) -> None:
        super().__init__()
        self._num_replicas = num_replicas
        self._own = own
        self._replicas_of_workers = replicas_of_workers
        self._roots = [replica_tree.roots_of(one, num_replicas=num_replicas) for one in replicas_of_workers]
        self._own_roots = replica_tree.roots_of(own, num_replicas=num_replicas)
        self._most_roots = max(map(len, self._roots))
        self._launcher = launcher

    @property
    def _num_between_graph_workers(self) -> int:
        return len(self._roots)

    def reduce_implementation(
        self, reduce_op: tf.distribute.ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        return self._reduced(reduce_op, [per_replica_value], options)[0]

    def batch_reduce_implementation(
        self, reduce_op: tf.distribute.ReduceOp, value_destination_pairs: Sequence[Any], options: Any
    ) -> list[Any]:
        return self._reduced(reduce_op, [value for value, _ in value_destination_pairs], options)

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        def gather() -> tf.Tensor:
            joined = tf.concat(per_replica_value.values, axis)
            return joined if len(self._roots) == 1 else self._launcher.all_gather(joined, axis, options)

        return tf.function(gather)() if tf.executing_eagerly() else gather()

    def gather_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns all replicas' rows; takes those of this worker's."""
        if len(self._roots) == 1:
            return rows
        most = max(map(len, self._replicas_of_workers))
        padded = tf.pad(rows, [[0, most - len(self._own)], [0, 0]])
        gathered = tf_private.all_gather(self._launcher, padded[None], None)
        return tf.concat(
            [gathered[worker, : len(own)] for worker, own in enumerate(self._replicas_of_workers)], axis=0
        )

    def _reduced(self, reduce_op: tf.distribute.ReduceOp, values: Sequence[Any], options: Any) -> list[Any]:
        found: dict[int, Any] = {}
        parts: dict[int, list[tf.Tensor]] = {}
        for index, one in enumerate(values):
            copies = one.values
            if len(copies) != len(self._own):  # a plain tensor: what this worker has
                copies = (*copies, *[tf.zeros_like(copies[0])] * (len(self._own) - 1))
            if isinstance(copies[0], tf.IndexedSlices):
                found[index] = self._joined(copies, options)
            else:
                leaves = replica_tree.of_replicas(self._own, [tf.convert_to_tensor(own) for own in copies])
                parts[index] = [replica_tree.summed(root, leaves, tf.add) for root in self._own_roots]
        if len(self._roots) == 1:
            found |= {index: sums[0] for index, sums in parts.items()}
        else:
            for dtype in dict.fromkeys(sums[0].dtype for sums in parts.values()):
                of_type = {index: sums for index, sums in parts.items() if sums[0].dtype == dtype}
                found |= self._over_workers(of_type, options)
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        return [self._divided(found[index]) if is_mean else found[index] for index in range(len(values))]

    def _joined(self, rows: Sequence[tf.IndexedSlices], options: Any) -> tf.IndexedSlices:
        """Returns the rows of all replicas, one after the other."""
        joined = tf.IndexedSlices(
            tf.concat([one.values for one in rows], axis=0),
            tf.concat([one.indices for one in rows], axis=0),
            rows[0].dense_shape,
        )
        return joined if len(self._roots) == 1 else self._launcher.all_reduce_indexed_slices(joined, options)

    def _divided(self, total: Any) -> Any:
        if isinstance(total, tf.IndexedSlices):
            return tf.IndexedSlices(total.values / self._num_replicas, total.indices, total.dense_shape)
        return total / tf.cast(self._num_replicas, total.dtype)

    def _over_workers(self, parts: Mapping[int, list[tf.Tensor]], options: Any) -> dict[int, tf.Tensor]:
        """Returns the sums over all workers of tensors of one type, of which this worker has the roots."""
        first = {index: sums[0] for index, sums in parts.items()}
        flat = [
            tf.concat([tf.reshape(sums[root], [-1]) for sums in parts.values()], axis=0)
            for root in range(len(self._own_roots))
        ]
        total = self._summed(flat, options)
        sizes = [one.shape.num_elements() for one in first.values()]
        known = sizes if None not in sizes else [tf.size(one) for one in first.values()]
        pieces = tf.split(total, known, num=len(first))
        return {
            index: tf.ensure_shape(tf.reshape(piece, tf.shape(one)), one.shape)
            for (index, one), piece in zip(first.items(), pieces, strict=True)
        }

    def _summed(self, flat: Sequence[tf.Tensor], options: Any) -> tf.Tensor:
        none = [tf.zeros_like(flat[0])] * (self._most_roots - len(flat))
        rows = tf.stack([*flat, *none])  # [roots, size]
        size, num_workers = rows.shape[1], len(self._roots)
        if size is None or num_workers == 2 or size * rows.dtype.size <= _MOST_GATHERED_BYTES:
            return self._added(tf_private.all_gather(self._launcher, rows[None], options))
        # As many bytes as a ring: each worker adds one chunk for all of them.
        padded = tf.pad(rows, [[0, 0], [0, -size % num_workers]])
        chunks = tf.transpose(tf.reshape(padded, [self._most_roots, num_workers, -1]), [1, 0, 2])
        own_chunk = self._added(tf_private.all_to_all(self._launcher, chunks, options))
        return tf.reshape(tf_private.all_gather(self._launcher, own_chunk[None], options), [-1])[:size]

    def _added(self, of_workers: tf.Tensor) -> tf.Tensor:
        """Returns the sum by the tree of `[workers, roots, size]`."""
        known = {
            root: of_workers[worker, place]
            for worker, roots in enumerate(self._roots)
            for place, root in enumerate(roots)
        }
        return replica_tree.summed(range(self._num_replicas), known, tf.add)
