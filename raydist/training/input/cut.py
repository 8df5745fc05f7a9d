"""Gives each replica its slice of every global batch of a `tf.data` pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster import kinds
from raydist.training.cluster.virtual_strategy import VirtualReplicasStrategy
from raydist.training.input import own_rows, walk, worker_order
from raydist.training.replicas import slices
from raydist.training.reporting import reporter

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
    Elements are `Slice`s, or bare batches where the batch size is static and the replicas divide it. A
    pipeline whose options name an auto-shard policy is left to TensorFlow. What a worker's only replica reads
    on a CPU is a plain dataset: the iterator of a distributed one has threads and functions of its own, which
    copy to devices, and agrees with the other workers where an end may come.

    Args:
      endless: Promise that no more elements are taken than there are. TensorFlow then saves the
        all-reduce per step by which the workers agree that all still have data (input_lib.py,
        `get_next_as_optional`).
      begin: Takes a dataset with an element for each global batch, and returns it from where to begin.
      is_compared: As of `worker_order.check`.
    """
    if strategy.num_replicas_in_sync == 1 or not _can_slice(dataset, strategy):
        return strategy.experimental_distribute_dataset(begin(dataset))
    worker_order.check(dataset, strategy, is_compared=is_compared)
    if endless and isinstance(strategy, VirtualReplicasStrategy) and strategy.is_on_cpu:
        # The iterator of a distributed dataset may take seconds to be deleted.
        num_replicas = strategy.num_replicas_in_sync
        own = own_rows.OwnPart.of_replicas(strategy.own_replicas, num_replicas=num_replicas)
        return part_of(dataset, own, begin=begin, is_joined=True)
    if endless and (number := kinds.only_cpu_replica(strategy)) is not None:
        own = own_rows.OwnPart(first=number, num_local=1, num_replicas=strategy.num_replicas_in_sync)
        return part_of(dataset, own, begin=begin)

    def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return part_of(dataset, own_rows.OwnPart.of(context), begin=begin, endless=endless)

    return strategy.distribute_datasets_from_function(pipeline)


def part_of(
    dataset: tf.data.Dataset,
    part: own_rows.OwnPart,
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
    is_even = slices.is_even(dataset.element_spec, part.num_replicas)

    def elements(*ones: slices.Slice) -> list[Any]:
        return [one.batch if is_even else one for one in ones]

    whole = begin(_slices(dataset, part))
    plain = tf.autograph.experimental.do_not_convert
    if is_joined:
        local = whole.map(plain(lambda *ones: tf_private.regroup(elements(*ones), always_wrap=True)))
    elif part.num_local == 1:
        local = whole.map(plain(lambda one: elements(one)[0]))
    else:  # one by one, in the order in which TensorFlow hands them out
        local = whole.flat_map(plain(lambda *ones: _in_turn(elements(*ones))))
    local = local.with_options(dataset.options())
    if dataset.options().deterministic is False:
        # Each worker would read in an order of its own, and take other examples than its own.
        options = tf.data.Options()
        options.deterministic = True
        local = local.with_options(options)
    if endless:
        local = local.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return local.prefetch(tf.data.AUTOTUNE)


def _slices(dataset: tf.data.Dataset, part: own_rows.OwnPart) -> tf.data.Dataset:
    """Returns a tuple of `Slice`s, one for each local replica, for each global batch."""
    if part.is_whole:  # no other worker could share the maps
        return _cut_at_end(dataset, part)
    found = walk.find_place(dataset)
    if found.obstacle is not None:
        reporter.note(
            "each worker maps all examples of the tf.data pipeline and keeps its rows of each batch, because "
            f"{found.obstacle}; raydist.data, --auto-shard file and --data-workers divide this work too "
            "(raydist guide input-data)"
        )
    return _cut_at_end(dataset, part) if found.place is None else own_rows.slices_of(found.place, part)


def _cut_at_end(dataset: tf.data.Dataset, part: own_rows.OwnPart) -> tf.data.Dataset:
    is_tuple = type(dataset.element_spec) is tuple  # tf.data passes a namedtuple as one argument

    @tf.autograph.experimental.do_not_convert  # which would wrap what is raised
    def cut(*elements: Any) -> tuple[slices.Slice, ...]:
        batch = elements if is_tuple else elements[0]
        return tuple(slices.slice_of(batch, replica, part.num_replicas) for replica in part.replicas)

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _in_turn(ones: Sequence[Any]) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors(ones[0])
    for one in ones[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(one))
    return dataset


def _can_slice(dataset: Any, strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(dataset, tf.data.Dataset):
        return False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (None, AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
        return False
    specs = tf.nest.flatten(dataset.element_spec)
    if not specs or any(getattr(spec, "shape", tf.TensorShape(None)).rank in (None, 0) for spec in specs):
        return False
    # TPUs need static shapes, which only an even cut has.
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return not is_tpu or slices.is_even(dataset.element_spec, strategy.num_replicas_in_sync)
