"""What the workers of a synchronous strategy exchange between two calls of a step function.

A collective gets its instance key by counting (cross_device_utils.py, `_next_instance_key`), so every
worker has to ask after the same call, and to do the same with the answer.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.spec.text import listed
from raydist.training.cluster import kept_totals, replica_tree
from raydist.training.cluster.virtual_strategy import VirtualReplicasStrategy

# The groups of all workers' CPUs, far from the numbers that TensorFlow counts for groups.
_WORKERS, _SUMS = 1 << 30, (1 << 30) + 1


def is_alone(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process has all replicas, or directs them, without other workers to agree with."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy) or tf_private.is_default(strategy):
        return True
    return len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync


def means_over_workers(strategy: tf.distribute.Strategy, values: Sequence[float]) -> Sequence[float]:
    """Returns the means of some numbers over all workers, the same in each. A collective."""
    if is_alone(strategy) or not values:
        return values
    means = _sums_over_workers(strategy, np.asarray(values)) / tf_private.num_workers_of(strategy)
    found: list[float] = means.astype(np.float32).tolist()
    return found


def _sums_over_workers(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """Returns the sums of a vector over all workers: a collective of their CPUs."""
    with tf_private.CollectiveCalls.told(), tf.device(tf_private.host_of(strategy)):
        summed = tf.raw_ops.CollectiveReduceV2(
            input=tf.constant(values, tf.float64),
            group_size=tf_private.num_workers_of(strategy),
            group_key=_SUMS,
            instance_key=len(values),  # see `gather_over_workers`
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
    found: np.ndarray = summed.numpy()
    return found


def findings_of_workers(strategy: tf.distribute.Strategy, values: Sequence[float]) -> Sequence[float]:
    """Returns what the workers have found together, the same in each: a collective.

    Each looks at the batch of its first replica, and it is the mean over them. Of virtual replicas it is what
    replica 0 shows, which does not depend on the number of workers.
    """
    if not isinstance(strategy, VirtualReplicasStrategy) or is_alone(strategy):
        return means_over_workers(strategy, values)
    rows = gather_over_workers(strategy, np.asarray(values, np.float64).view(np.int64).tolist())
    return np.asarray(rows[0], np.int64).view(np.float64).tolist()


def sums_over_replicas(variables: Sequence[Any], strategy: tf.distribute.Strategy) -> list[np.ndarray]:
    """Returns what variables that are summed on read hold in all replicas. One collective for all of them."""
    if isinstance(strategy, VirtualReplicasStrategy):
        sums = [summed_by_tree(one) for one in copies_of_replicas(variables, strategy)]
    else:
        own = [np.sum([copy.numpy() for copy in one.values], axis=0, dtype="float64") for one in variables]
        flat = np.concatenate([np.reshape(one, -1) for one in own])
        total = flat if is_alone(strategy) else _sums_over_workers(strategy, flat)
        parts = np.split(total, np.cumsum([one.size for one in own])[:-1])
        sums = [part.reshape(one.shape) for part, one in zip(parts, own, strict=True)]
    _keep_totals(variables, sums, strategy)
    return sums


def _keep_totals(
    variables: Sequence[Any], sums: Sequence[np.ndarray], strategy: tf.distribute.Strategy
) -> None:
    for variable, total in zip(variables, sums, strict=True):
        is_mean = variable.aggregation == tf.VariableAggregation.MEAN
        held = total / strategy.num_replicas_in_sync if is_mean else total
        kept_totals.keep(variable, tf.cast(held, variable.dtype))


def copies_of_replicas(variables: Sequence[Any], strategy: tf.distribute.Strategy) -> list[np.ndarray]:
    """Returns what each replica holds of some variables, `[num_replicas, ...]`: one collective."""
    own = [np.stack([copy.numpy() for copy in one.values]) for one in variables]
    copies = rows_of_replicas(own, strategy=strategy)
    if not isinstance(strategy, VirtualReplicasStrategy):
        _keep_totals(variables, [np.sum(one, axis=0, dtype="float64") for one in copies], strategy)
    return copies


def means_over_replicas(strategy: VirtualReplicasStrategy, own: np.ndarray) -> list[float]:
    """Returns the means over all virtual replicas, with the same bits on any number of workers: a collective.

    Args:
      own: What each of this worker's replicas has, `[replicas, values]`.
    """
    [copies] = rows_of_replicas([own.astype(np.float64)], strategy=strategy)
    means: list[float] = (summed_by_tree(copies) / len(copies)).tolist()
    return means


def rows_of_replicas(own: Sequence[np.ndarray], *, strategy: tf.distribute.Strategy) -> list[np.ndarray]:
    """Returns arrays with a row for each replica, of those of this worker: one collective."""
    num_local = len(own[0])
    rows = [np.ascontiguousarray(one).reshape(num_local, -1).view(np.uint8) for one in own]
    sizes = [one.shape[1] for one in rows]
    fill = np.zeros([num_local, -sum(sizes) % 8], np.uint8)  # collectives take no bytes, but integers
    sent = np.concatenate([*rows, fill], axis=1)
    if isinstance(strategy, VirtualReplicasStrategy):
        found = _traced_rows(strategy)(tf.constant(sent.view(np.int32))).numpy().view(np.uint8)
    elif is_alone(strategy):
        found = sent
    else:
        gathered = _gathered(strategy, sent.reshape(-1).view(np.int64), key=2 * sent.size // 8)
        found = gathered.view(np.uint8).reshape(-1, sent.shape[1])
    parts = np.split(found[:, : sum(sizes)], np.cumsum(sizes)[:-1], axis=1)
    return [
        np.ascontiguousarray(part).view(one.dtype).reshape(len(part), *one.shape[1:])
        for part, one in zip(parts, own, strict=True)
    ]


def summed_by_tree(copies: np.ndarray) -> np.ndarray:
    """Returns the sum over replicas, the first axis, with the bits of the strategy's own."""
    replicas = range(len(copies))
    return replica_tree.summed(replicas, replica_tree.of_replicas(replicas, list(copies)), np.add)


@functools.cache
def _traced_rows(strategy: VirtualReplicasStrategy) -> Callable[[tf.Tensor], tf.Tensor]:
    return tf.function(strategy.gather_rows, [tf.TensorSpec([None, None], tf.int32)], autograph=False)


def gather_over_workers(
    strategy: tf.distribute.Strategy, values: Sequence[int], *, is_meeting: bool = False
) -> list[list[int]]:
    """Returns each worker's numbers, in the order of the workers, the same in each. A collective.

    By one operation between the workers' CPUs: a traced `all_gather` of a strategy takes five times as long.

    Args:
      values: As many in each worker.
      is_meeting: Whether workers meet by it, which no other gather may take part in.
    """
    # TensorFlow takes one shape for each key (collective_param_resolver_local.cc).
    key = 2 * len(values) + is_meeting
    rows: list[list[int]] = _gathered(strategy, np.asarray(values, np.int64), key=key).tolist()
    return rows


def _gathered(strategy: tf.distribute.Strategy, row: np.ndarray, *, key: int) -> np.ndarray:
    with tf_private.CollectiveCalls.told(), tf.device(tf_private.host_of(strategy)):
        gathered = tf.raw_ops.CollectiveGatherV2(
            input=tf.constant(row[None]),
            group_size=tf_private.num_workers_of(strategy),
            group_key=_WORKERS,
            instance_key=key,
            ordering_token=[],
        )
    found: np.ndarray = gathered.numpy()
    return found


def local_index(strategy: tf.distribute.Strategy) -> Any:
    """Returns which of its worker's replicas is being traced: a number, or a scalar tensor."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    if isinstance(strategy, VirtualReplicasStrategy):
        return replica - strategy.own_replicas.start
    return replica % len(strategy.extended.worker_devices)


def inconsistent_workers(rows: Sequence[Sequence[int]]) -> list[int]:
    """Returns the workers whose numbers are not those of most; among equally many the chief is right."""
    counts = Counter(map(tuple, rows))
    right = max(counts, key=lambda row: (counts[row], row == tuple(rows[0])))
    return [index for index, row in enumerate(rows) if tuple(row) != right]


def inconsistent_names(rows: Sequence[Sequence[int]]) -> str:
    """Returns the names of `inconsistent_workers`; empty where there are none."""
    return worker_names(inconsistent_workers(rows))


def by_worker(values: Iterable[object]) -> str:
    """Returns `worker/0 3, worker/1 4`, of what each worker has."""
    return listed(f"worker/{index} {value}" for index, value in enumerate(values))


def worker_names(indices: Iterable[int]) -> str:
    """Returns `worker/0, worker/2`."""
    return ", ".join(f"worker/{index}" for index in indices)
