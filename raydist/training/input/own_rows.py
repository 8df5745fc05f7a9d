"""A pipeline of global batches, rebuilt so that a worker maps the examples of its own replicas alone.

The elements of the source are counted into windows, one for each global batch. Of each window the worker
keeps the elements that are its rows, by the rule of replicas/slices.py, and the first one where a replica
has none and needs a padding example. The maps see only those. Each carries the size of its window, because
the worker has to know how large the last global batch is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster import replica_tree
from raydist.training.input.walk import Place
from raydist.training.replicas import slices
from raydist.training.tf_private import Transformation


@dataclass(frozen=True)
class OwnPart:
    """Which replicas of all are this worker's.

    Attributes:
      first: The first one's number.
      num_local: How many there are, with successive numbers.
      num_replicas: Of all workers together.
    """

    first: int
    num_local: int
    num_replicas: int

    @classmethod
    def of(cls, context: tf.distribute.InputContext) -> OwnPart:
        num_replicas = context.num_replicas_in_sync
        own = replica_tree.replicas_of(
            context.input_pipeline_id, num_workers=context.num_input_pipelines, num_replicas=num_replicas
        )
        return cls.of_replicas(own, num_replicas=num_replicas)

    @classmethod
    def of_replicas(cls, own: range, *, num_replicas: int) -> OwnPart:
        return cls(first=own.start, num_local=len(own), num_replicas=num_replicas)

    @property
    def replicas(self) -> range:
        return range(self.first, self.first + self.num_local)

    @property
    def is_whole(self) -> bool:
        """Whether there is no other worker."""
        return self.num_local == self.num_replicas

    def rows_of(self, num_global: Any) -> tuple[Any, Any, Any]:
        """Returns first row, row after the last, and whether the first of the batch is needed for padding."""
        last = self.first + self.num_local - 1
        start, _ = slices.bounds(num_global, self.first, self.num_replicas)
        last_start, last_size = slices.bounds(num_global, last, self.num_replicas)
        # The last of the worker's replicas has no more rows than the others.
        return start, last_start + last_size, last_size == 0


def slices_of(place: Place, part: OwnPart) -> tf.data.Dataset:
    """Returns a dataset with a tuple of `Slice`s, one for each local replica, for each global batch."""
    batch = place.batch
    size = tf_private.parameter(batch, "_batch_size")
    drops = tf_private.parameter(batch, "_drop_remainder")
    start, end, is_padded = part.rows_of(size)
    dataset = place.source
    for node in place.before_batch:
        if tf_private.transformation_of(node) not in (Transformation.MAP, Transformation.PREFETCH):
            dataset = tf_private.moved(node, dataset)
    dataset = _picked(dataset, part, size, drop_remainder=drops)
    for node in place.before_batch:
        if tf_private.transformation_of(node) is Transformation.MAP:
            dataset = _mapped(dataset, node)
        elif tf_private.transformation_of(node) is Transformation.PREFETCH:
            dataset = tf_private.moved(node, dataset)
    dataset = _batched(dataset, batch, end - start + int(is_padded), drop_remainder=drops)
    for node in place.after_batch:
        is_map = tf_private.transformation_of(node) is Transformation.MAP
        dataset = _mapped_rows(dataset, node) if is_map else tf_private.moved(node, dataset)

    @tf.autograph.experimental.do_not_convert
    def cut(num_global: tf.Tensor, rows: Any) -> tuple[slices.Slice, ...]:
        total = size if drops else num_global[0]
        return tuple(
            slices.slice_of_part(rows, replica, part.num_replicas, first=part.first, num_global=total)
            for replica in part.replicas
        )

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _picked(
    source: tf.data.Dataset, part: OwnPart, batch_size: int, *, drop_remainder: bool
) -> tf.data.Dataset:
    """Returns (size of the global batch, element) for the worker's elements of each window of the source."""
    is_tuple = type(source.element_spec) is tuple  # tf.data passes a namedtuple as one argument

    @tf.autograph.experimental.do_not_convert
    def pick(*windows: Any) -> tf.data.Dataset:
        elements: Any = windows if is_tuple else windows[0]
        if not isinstance(elements, tf.data.Dataset):
            elements = tf.data.Dataset.zip(elements)
        num_global = elements.cardinality()
        start, end, is_padded = part.rows_of(num_global)
        own = elements.skip(start).take(end - start)
        if batch_size < part.num_replicas or not drop_remainder:
            own = own.concatenate(elements.take(tf.cast(is_padded, tf.int64)))
        size = tf.data.Dataset.from_tensors(tf.cast(num_global, tf.int32)).repeat()
        return tf.data.Dataset.zip((size, own))

    return source.window(batch_size, drop_remainder=drop_remainder).flat_map(pick)


def _mapped(dataset: tf.data.Dataset, node: tf.data.Dataset) -> tf.data.Dataset:
    [function] = tf_private.functions_of(node)

    @tf.autograph.experimental.do_not_convert
    def keep_size(num_global: tf.Tensor, element: Any) -> Any:
        return num_global, function(element)

    return dataset.map(keep_size, **_parallelism(node))


def _mapped_rows(dataset: tf.data.Dataset, node: tf.data.Dataset) -> tf.data.Dataset:
    [function] = tf_private.functions_of(node)

    @tf.autograph.experimental.do_not_convert
    def keep_size(num_global: tf.Tensor, rows: Any) -> Any:
        return num_global, function.on_rows(rows)

    return dataset.map(keep_size, **_parallelism(node))


def _batched(
    dataset: tf.data.Dataset, node: tf.data.Dataset, size: int, *, drop_remainder: bool
) -> tf.data.Dataset:
    if tf_private.transformation_of(node) is Transformation.BATCH:
        return dataset.batch(size, drop_remainder=drop_remainder, **_parallelism(node))
    return dataset.padded_batch(
        size,
        padded_shapes=([], tf_private.parameter(node, "_padded_shapes")),
        padding_values=(0, tf_private.parameter(node, "_padding_values")),
        drop_remainder=drop_remainder,
    )


def _parallelism(node: tf.data.Dataset) -> dict[str, Any]:
    calls = tf_private.parameter(node, "_num_parallel_calls")
    return {} if calls is None else {"num_parallel_calls": calls, "deterministic": True}
