"""Batches that the user passes by hand, to `train_on_batch`, `test_on_batch` and `predict_on_batch`.

Every worker passes the same batch, which is the global one: each replica takes its slice, as in `fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.replicas import slices


def for_replicas(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a global batch as a `Slice` of each local replica; as it is where there is one replica.

    What is distributed already stays as it is; so does what has no rows, such as a list of Python numbers,
    which each replica then takes whole.
    """
    num_replicas = strategy.num_replicas_in_sync
    components = tf.nest.flatten(batch)
    given = [one for one in components if one is not None]  # such as no weights
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)  # needs static shapes
    if num_replicas == 1 or is_tpu or not all(map(_has_rows, given)):
        return batch
    tensors = [tf.convert_to_tensor(one) if isinstance(one, np.ndarray) else one for one in given]
    cut = strategy.experimental_distribute_values_from_function(
        lambda context: slices.slice_of(tensors, context.replica_id_in_sync_group, num_replicas)
    )
    present = iter(cut.batch)
    parts = [None if one is None else next(present) for one in components]
    return cut._replace(batch=tf.nest.pack_sequence_as(batch, parts))


def step_of(
    strategy: tf.distribute.Strategy,
    replica_step: Callable[[Any], Any],
    *,
    run_eagerly: bool,
    finish: Callable[[Any], Any],
) -> Callable[[Any], Any] | None:
    """Returns a step on a batch that was passed by hand, which returns the logs of all its examples.

    They go back to the user at once, so they take a collective each. None for one replica, whose logs are
    those of all.

    Args:
      finish: Takes logs that are means over the examples; puts those of metrics, which may be no means, in
        their place.
    """
    if strategy.num_replicas_in_sync == 1:
        return None

    def weighted(element: Any) -> Any:
        outputs = replica_step(element)
        share = element.share if isinstance(element, slices.Slice) else 1 / strategy.num_replicas_in_sync

        def part(value: Any) -> tf.Tensor:
            value = value if value.dtype.is_floating else tf.cast(value, tf.float32)
            # The share of a padding example is 0, but its loss may be anything: 0 * inf would be NaN.
            return tf.where(share > 0, value * tf.cast(share, value.dtype), tf.zeros_like(value))

        return tf.nest.map_structure(part, outputs)

    @tf.autograph.experimental.do_not_convert
    def step(element: Any) -> Any:
        outputs = strategy.run(weighted, args=(element,))
        reduce = tf.distribute.ReduceOp.SUM
        return tf.nest.map_structure(lambda value: strategy.reduce(reduce, value, axis=None), outputs)

    traced = step if run_eagerly else tf.function(step, reduce_retracing=True)
    return lambda batch: finish(traced(for_replicas(batch, strategy)))


def _has_rows(component: Any) -> bool:
    if isinstance(component, np.ndarray):
        return component.ndim > 0
    is_tensor = isinstance(component, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))
    return is_tensor and component.shape.rank not in (None, 0)
