"""Gives each replica its slice of every global batch of a `tf.data` pipeline.

Where it can, a worker maps the examples of its own replicas alone. train_data.py calls `cut_for_replicas` for
loops; for models both Kerases call it, with the dataset that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.data.pipeline import Part, in_turn
from raydist.errors import UnsupportedError
from raydist.tf_private import Transformation
from raydist.training.cluster import equal_workers, worker_shares
from raydist.training.cluster.strategy import only_cpu_replica
from raydist.training.cluster.virtual_strategy import VirtualReplicasStrategy
from raydist.training.input import walk, worker_order
from raydist.training.input.walk import Place
from raydist.training.replicas import batch_slices
from raydist.training.reporting import reporter

# Makes an element of the slices that the local replicas have of a global batch.
_ElementOf = Callable[[Sequence[batch_slices.Slice]], Any]


def slices_of(place: Place, part: Part, element_of: _ElementOf) -> tf.data.Dataset:
    """Returns what `_elements` does."""
    batch = place.batch
    size = tf_private.parameter(batch, "batch_size")
    drops = tf_private.parameter(batch, "drop_remainder")
    start, end, is_padded = _rows_of(part, size)
    dataset = place.source
    for node in place.before_batch:
        if tf_private.transformation_of(node) not in (Transformation.MAP, Transformation.PREFETCH):
            dataset = tf_private.moved(node, dataset)
    dataset = _picked(dataset, part, size, drop_remainder=drops)
    for node in place.before_batch:
        if tf_private.transformation_of(node) is Transformation.MAP:
            dataset = _mapped(dataset, node, of_rows=False)
        elif tf_private.transformation_of(node) is Transformation.PREFETCH:
            dataset = tf_private.moved(node, dataset)
    dataset = _batched(dataset, batch, end - start + int(is_padded), drop_remainder=drops)
    for node in place.after_batch:
        is_map = tf_private.transformation_of(node) is Transformation.MAP
        dataset = _mapped(dataset, node, of_rows=True) if is_map else tf_private.moved(node, dataset)

    @tf.autograph.experimental.do_not_convert
    def cut(num_global: tf.Tensor, rows: Any) -> Any:
        total = size if drops else num_global[0]
        return element_of(
            [
                batch_slices.slice_of_part(
                    rows, replica, part.num_replicas, part.shares, first=part.first, num_global=total
                )
                for replica in part.replicas
            ]
        )

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _rows_of(part: Part, num_global: Any) -> tuple[Any, Any, Any]:
    """Returns first row, row after the last, and whether the first of the batch is needed for padding."""
    start, _ = batch_slices.bounds(num_global, part.first, part.num_replicas, part.shares)
    last_start, last_size = batch_slices.bounds(num_global, part.replicas[-1], part.num_replicas, part.shares)
    # The last of the worker's replicas has no more rows than the others.
    return start, last_start + last_size, last_size == 0


def _picked(source: tf.data.Dataset, part: Part, batch_size: int, *, drop_remainder: bool) -> tf.data.Dataset:
    """Returns (size of the global batch, element) for the worker's elements of each window of the source."""
    is_tuple = type(source.element_spec) is tuple  # tf.data passes a namedtuple as one argument

    @tf.autograph.experimental.do_not_convert
    def pick(*windows: Any) -> tf.data.Dataset:
        elements: Any = windows if is_tuple else windows[0]
        if not isinstance(elements, tf.data.Dataset):
            elements = tf.data.Dataset.zip(elements)
        num_global = elements.cardinality()
        start, end, is_padded = _rows_of(part, num_global)
        own = elements.skip(start).take(end - start)
        if part.shares or batch_size < part.num_replicas or not drop_remainder:
            own = own.concatenate(elements.take(tf.cast(is_padded, tf.int64)))
        size = tf.data.Dataset.from_tensors(tf.cast(num_global, tf.int32)).repeat()
        return tf.data.Dataset.zip((size, own))

    return source.window(batch_size, drop_remainder=drop_remainder).flat_map(pick)


def _mapped(dataset: tf.data.Dataset, node: tf.data.Dataset, *, of_rows: bool) -> tf.data.Dataset:
    [function] = tf_private.functions_of(node)
    mapped = function.on_rows if of_rows else function

    @tf.autograph.experimental.do_not_convert
    def keep_size(num_global: tf.Tensor, element: Any) -> Any:
        return num_global, mapped(element)

    return dataset.map(keep_size, **_parallelism(node))


def _batched(
    dataset: tf.data.Dataset, node: tf.data.Dataset, size: int, *, drop_remainder: bool
) -> tf.data.Dataset:
    if tf_private.transformation_of(node) is Transformation.BATCH:
        return dataset.batch(size, drop_remainder=drop_remainder, **_parallelism(node))
    return dataset.padded_batch(
        size,
        padded_shapes=([], tf_private.parameter(node, "padded_shapes")),
        padding_values=(0, tf_private.parameter(node, "padding_values")),
        drop_remainder=drop_remainder,
    )


def _parallelism(node: tf.data.Dataset) -> dict[str, Any]:
    calls = tf_private.parameter(node, "num_parallel_calls")
    return {} if calls is None else {"num_parallel_calls": calls, "deterministic": True}


AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def cut_for_replicas(
    dataset: tf.data.Dataset,
    strategy: tf.distribute.Strategy,
    *,
    endless: bool,
    begin: Callable[[tf.data.Dataset], tf.data.Dataset] = lambda batches: batches,
    is_compared: bool = False,
) -> Any:
    """Returns `dataset`, batched with the global batch size, as a distributed dataset.

    The order of examples does not depend on the number of workers: every worker reads the whole pipeline
    and keeps its own slice of each global batch. Where it is the same, it does so before the maps (walk.py).
    Elements are `Slice`s, or `EvenSlice`s where the batch size is static and the replicas divide it. A
    pipeline whose options name an auto-shard policy is left to TensorFlow. What a worker's only replica reads
    on a CPU is a plain dataset: the iterator of a distributed one has threads and functions of its own, which
    copy to devices, and agrees with the other workers where an end may come.

    Args:
      endless: Promise that no more elements are taken than there are, as it is of data without an end.
        TensorFlow then saves the all-reduce per step by which the workers agree that all still have data
        (input_lib.py, `get_next_as_optional`).
      begin: Takes a dataset with an element for each global batch, and returns it from where to begin.
      is_compared: As of `worker_order.check`.
    """
    own = only_cpu_replica(strategy)
    if own is not None and strategy.num_replicas_in_sync == 1 and isinstance(dataset, tf.data.Dataset):
        return begin(dataset).prefetch(tf.data.AUTOTUNE)
    if strategy.num_replicas_in_sync == 1 or not _can_slice(dataset, strategy):
        note_equal_parts(strategy)
        return strategy.experimental_distribute_dataset(begin(dataset))
    worker_order.check(dataset, strategy, is_compared=is_compared)
    for sentence in walk.notes_on_parallel_draws(dataset):
        reporter.note(sentence)
    num_replicas, shares = strategy.num_replicas_in_sync, worker_shares.of(strategy)
    # TensorFlow would not see it in workers of several replicas, and these alone would ask the others.
    endless = endless or equal_workers.size_of(dataset) == tf.data.INFINITE_CARDINALITY
    if endless and isinstance(strategy, VirtualReplicasStrategy) and strategy.is_on_cpu:
        # The iterator of a distributed dataset may take seconds to be deleted.
        local = strategy.own_replicas
        return part_of(dataset, Part(local.start, len(local), num_replicas), begin=begin, is_joined=True)
    if endless and own is not None:
        return part_of(dataset, Part(own, 1, num_replicas, shares), begin=begin)

    def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return part_of(dataset, Part.of(context, shares), begin=begin, endless=endless)

    return strategy.distribute_datasets_from_function(pipeline)


def note_equal_parts(strategy: tf.distribute.Strategy) -> None:
    """Tells where raydist does not divide the data, and so no worker has another share than the others."""
    if worker_shares.of(strategy):
        reporter.note(
            "--shares has no effect on data that TensorFlow, or a function of an InputContext, divides among "
            "the workers; give a tf.data.Dataset of global batches, arrays, or raydist.data"
        )


def refuse_distributed(data: Any) -> None:
    """Raises UnsupportedError for a distributed dataset that the chief of ParameterServer is to read."""
    if isinstance(data, tf.distribute.DistributedDataset):
        raise UnsupportedError(
            f"the data are a {type(data).__name__}, and under parameter_server Keras's evaluate and predict "
            "run on the chief alone; give the dataset that was distributed"
        )


def part_of(
    dataset: tf.data.Dataset,
    part: Part,
    *,
    begin: Callable[[tf.data.Dataset], tf.data.Dataset] = lambda batches: batches,
    endless: bool = False,
    is_joined: bool = False,
) -> tf.data.Dataset:
    """Returns what a worker has of `dataset`: an element for each local replica, global batch by batch.

    Its arguments and elements are those of `cut_for_replicas`.

    Args:
      is_joined: Whether an element has the parts of all local replicas, as `strategy.run` takes them.
    """
    is_even = not part.shares and batch_slices.is_even(dataset.element_spec, part.num_replicas)

    def element(ones: Sequence[batch_slices.Slice]) -> Any:
        parts = tuple(batch_slices.EvenSlice(one.batch) if is_even else one for one in ones)
        if is_joined:
            return tf_private.regroup(parts, always_wrap=True)
        return parts[0] if part.num_local == 1 else parts

    local = begin(_elements(dataset, part, element))
    if part.num_local > 1 and not is_joined:  # one by one, in the order in which TensorFlow hands them out
        local = local.flat_map(tf.autograph.experimental.do_not_convert(in_turn))
    local = local.with_options(dataset.options())
    if dataset.options().deterministic is False:
        # Each worker would read in an order of its own, and take other examples than its own.
        options = tf.data.Options()
        options.deterministic = True
        local = local.with_options(options)
    if endless:
        local = local.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return local.prefetch(tf.data.AUTOTUNE)


def _elements(dataset: tf.data.Dataset, part: Part, element_of: _ElementOf) -> tf.data.Dataset:
    """Returns, for each global batch, `element_of` the local replicas' slices of it."""
    if part.num_local == part.num_replicas:  # no other worker could share the maps
        return _cut_at_end(dataset, part, element_of)
    found = walk.find_place(dataset)
    if found.obstacle is not None:
        reporter.note(
            "each worker maps all examples of the tf.data pipeline and keeps its rows of each batch, because "
            f"{found.obstacle}; raydist.data, --auto-shard file and --data-workers divide this work too "
            "(raydist guide input-data)"
        )
    if found.place is None:
        return _cut_at_end(dataset, part, element_of)
    return slices_of(found.place, part, element_of)


def _cut_at_end(dataset: tf.data.Dataset, part: Part, element_of: _ElementOf) -> tf.data.Dataset:
    is_tuple = type(dataset.element_spec) is tuple  # tf.data passes a namedtuple as one argument

    @tf.autograph.experimental.do_not_convert  # which would wrap what is raised
    def cut(*elements: Any) -> Any:
        batch = elements if is_tuple else elements[0]
        return element_of(
            [
                batch_slices.slice_of(batch, replica, part.num_replicas, part.shares)
                for replica in part.replicas
            ]
        )

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _can_slice(dataset: Any, strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(dataset, tf.data.Dataset):
        return False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (None, AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
        return False
    batch_slices.check_has_rows(dataset.element_spec)
    specs = tf.nest.flatten(dataset.element_spec)
    if not specs or any(getattr(spec, "shape", tf.TensorShape(None)).rank in (None, 0) for spec in specs):
        return False
    # TPUs need static shapes, which only an even cut has.
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return not is_tpu or batch_slices.is_even(dataset.element_spec, strategy.num_replicas_in_sync)
