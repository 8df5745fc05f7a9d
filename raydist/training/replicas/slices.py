"""Cuts each global batch into one slice per replica, and weighs each slice by its number of examples.

TensorFlow re-batches a global batch of 128 on 3 replicas to 43, 43 and 42 examples and weighs each
local mean a third, which is not the mean over 128 (TF_NOTES 7); a batch with fewer examples than
replicas leaves some of them an empty batch, and Keras 3's BatchNormalization turns that into NaN
(TF_NOTES 1.6). Here the replicas know their share of the global batch, and a replica without
examples gets a copy of one with the share 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.replicas.replica_share import LossRule, use_share


class Slice(NamedTuple):
    """One replica's part of a global batch.

    Attributes:
      batch: The examples, in the structure of the data set; a padding example where
        `num_examples` is 0.
      num_examples: Genuine examples in `batch`, scalar int32.
      num_global: Examples in the global batch, scalar int32.
    """

    batch: Any
    num_examples: tf.Tensor
    num_global: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """This replica's part of the global batch, scalar float32; sums to 1 over the replicas."""
        return tf.math.divide_no_nan(
            tf.cast(self.num_examples, tf.float32), tf.cast(self.num_global, tf.float32)
        )


def cut_for_replicas(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, endless: bool) -> Any:
    """Returns `dataset`, batched with the global batch size, as a distributed data set.

    Every worker runs the whole pipeline and keeps its own slice of each global batch, so that the
    order of examples does not depend on the number of workers. Elements are `Slice`s, or bare
    batches where the batch size is static and the replicas divide it. A pipeline whose options name
    an auto-shard policy is left to TensorFlow.

    Args:
      endless: Promise that no more elements are taken than there are. TensorFlow then saves the
        all-reduce per step by which the workers agree that all still have data (input_lib.py,
        `get_next_as_optional`).
    """
    if strategy.num_replicas_in_sync == 1 or not _can_slice(dataset, strategy):
        return strategy.experimental_distribute_dataset(dataset)
    num_replicas = strategy.num_replicas_in_sync
    is_even = _is_even(dataset.element_spec, num_replicas)
    if dataset.options().deterministic is False:
        # Each worker would read in an order of its own, and take other examples than its own.
        options = tf.data.Options()
        options.deterministic = True
        dataset = dataset.with_options(options)

    def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        num_local = num_replicas // context.num_input_pipelines
        first = context.input_pipeline_id * num_local

        @tf.autograph.experimental.do_not_convert  # which would wrap what is raised
        def cut(*elements: Any) -> tuple[Any, ...]:
            batch = (
                elements[0]
                if len(elements) == 1 and not isinstance(dataset.element_spec, tuple)
                else elements
            )
            slices = tuple(slice_of(batch, first + local, num_replicas) for local in range(num_local))
            return tuple(one.batch for one in slices) if is_even else slices

        # One element per local replica, in the order in which TensorFlow hands them out.
        pieces = dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        local = pieces.map(lambda *slices: slices[0]) if num_local == 1 else pieces.flat_map(_in_turn)
        if endless:
            local = local.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return local.prefetch(tf.data.AUTOTUNE)

    return strategy.distribute_datasets_from_function(pipeline)


def run_slice(
    step_fn: Callable[[Any], Any],
    element: Any,
    *,
    rule: LossRule = LossRule.SCALED,
    is_model_step: bool = False,
) -> Any:
    """Runs `step_fn` on one replica's batch, with its share known to the losses. Returns what it returns."""
    if not isinstance(element, Slice):
        with use_share(None, rule, is_model_step=is_model_step):
            return step_fn(element)
    with use_share(element.share, rule, is_model_step=is_model_step):
        return step_fn(element.batch)


def drop_padding(outputs: Any, element: Any) -> Any:
    """Cuts the rows that a padding example made off the outputs (a structure of `[batch, ...]` tensors)."""
    if not isinstance(element, Slice):
        return outputs
    return tf.nest.map_structure(lambda output: output[: element.num_examples], outputs)


def keep_on_padding(variables: Sequence[tf.Variable], element: Any, run: Callable[[], Any]) -> Any:
    """Returns `run()`; after a padding example `variables` (metrics) get their old values back."""
    if not isinstance(element, Slice) or not variables:
        return run()
    before = [tf.identity(variable) for variable in variables]
    outputs = run()

    def put_back() -> tf.Tensor:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return tf.constant(0)

    tf.cond(element.num_examples > 0, lambda: tf.constant(0), put_back)
    return outputs


def _in_turn(*slices: Any) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors(slices[0])
    for one in slices[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(one))
    return dataset


def slice_of(batch: Any, replica: int, num_replicas: int) -> Slice:
    """Returns one replica's slice of a global batch.

    Raises:
      UnsupportedError: The components of the batch have not as many rows; TensorFlow's
        InvalidArgumentError where that is known only when it runs.
    """
    num_global = _common_rows(batch)
    base, extra = num_global // num_replicas, num_global % num_replicas
    start = replica * base + tf.minimum(replica, extra)
    size = base + tf.cast(replica < extra, tf.int32)
    # A padding example for an empty slice: the first example of the batch, which always exists.
    first = tf.where(size > 0, start, 0)
    taken = tf.maximum(size, 1)
    cut = tf.nest.map_structure(lambda component: _rows(component, first, taken, num_replicas), batch)
    return Slice(batch=cut, num_examples=size, num_global=num_global)


def _rows(component: Any, start: tf.Tensor, size: tf.Tensor, num_replicas: int) -> Any:
    cut = rows(component, start, size)
    if isinstance(component, tf.Tensor) and component.shape[0] is not None:
        is_even = component.shape[0] % num_replicas == 0
        cut = tf.ensure_shape(
            cut, [component.shape[0] // num_replicas if is_even else None, *component.shape[1:]]
        )
    return cut


def _common_rows(batch: Any) -> Any:
    """Returns the examples of a batch, all of whose components have that many rows."""
    counts = [num_rows(component) for component in tf.nest.flatten(batch, expand_composites=False)]
    known = {count for count in counts if isinstance(count, int)}
    if len(known) > 1:
        raise UnsupportedError(f"{UNLIKE_ROWS}: {sorted(known)}")
    checks = [
        tf.debugging.assert_equal(count, counts[0], message=UNLIKE_ROWS)
        for count in counts[1:]
        if not (isinstance(count, int) and isinstance(counts[0], int))
    ]
    if not checks:
        return counts[0]
    with tf.control_dependencies(checks):
        return tf.identity(counts[0])


UNLIKE_ROWS = (
    "the components of a batch have different numbers of rows, so raydist cannot cut it for several replicas "
    "(of a graph, for example, nodes and edges); use ragged tensors with a row for each example, or give "
    "train_data as a function of a tf.distribute.InputContext that makes the batches of each replica"
)


def num_rows(batch: Any) -> Any:
    """Returns the examples of a batch, by its first component: an int if known, else scalar int32."""
    component = tf.nest.flatten(batch, expand_composites=False)[0]
    if isinstance(component, tf.SparseTensor):
        return tf.cast(component.dense_shape[0], tf.int32)
    if isinstance(component, tf.RaggedTensor):
        return tf.cast(component.nrows(), tf.int32)
    return component.shape[0] if component.shape[0] is not None else tf.shape(component)[0]


def rows(component: Any, start: Any, size: Any) -> Any:
    """Returns `size` rows from `start` on of a dense, sparse or ragged tensor."""
    if isinstance(component, tf.SparseTensor):
        rank = tf.shape(component.dense_shape)[0]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros([rank - 1], tf.int64)], axis=0)
        extent = tf.concat([[tf.cast(size, tf.int64)], component.dense_shape[1:]], axis=0)
        return tf.sparse.slice(component, begin, extent)
    return component[start : start + size]


def _can_slice(dataset: Any, strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(dataset, tf.data.Dataset):
        return False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (
        None,
        tf.data.experimental.AutoShardPolicy.AUTO,
        tf.data.experimental.AutoShardPolicy.DATA,
    ):
        return False
    specs = tf.nest.flatten(dataset.element_spec)
    if not specs or any(getattr(spec, "shape", tf.TensorShape(None)).rank in (None, 0) for spec in specs):
        return False
    # TPUs need static shapes, which only an even cut has.
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return not is_tpu or _is_even(dataset.element_spec, strategy.num_replicas_in_sync)


def _is_even(element_spec: Any, num_replicas: int) -> bool:
    sizes = {spec.shape[0] for spec in tf.nest.flatten(element_spec)}
    return len(sizes) == 1 and None not in sizes and sizes.pop() % num_replicas == 0


def has_static_batch(dataset: Any) -> bool:
    """Whether all batches of a data set are known to have one size, as with `drop_remainder=True`."""
    # A distributed data set's spec holds one for each local replica.
    found = (getattr(spec, "_value_specs", [spec]) for spec in tf.nest.flatten(dataset.element_spec))
    return all(spec.shape.rank and spec.shape[0] is not None for specs in found for spec in specs)
