"""Reads `train_data` by TensorFlow's own conventions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.strategies import global_batch

AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def read_endless(
    train_data: Any, strategy: tf.distribute.Strategy, *, auto_shard: str = "data", skip: int = 0
) -> Any:
    """Returns the data over and over, distributed. The first pass begins after `skip` batches."""
    if callable(train_data) and takes_input_context(train_data):
        num_local = len(strategy.extended.worker_devices)  # each takes one per-replica batch a step

        def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return train_data(context).repeat().skip(skip * num_local)

        return strategy.distribute_datasets_from_function(endless)
    if callable(train_data):
        train_data = train_data()
    if isinstance(train_data, tf.data.Dataset):
        train_data = train_data.repeat().skip(skip)
    found = read(train_data, strategy, auto_shard=auto_shard)
    return (
        global_batch.distribute(found, strategy, endless=True)
        if isinstance(found, tf.data.Dataset)
        else found
    )


def read(train_data: Any, strategy: tf.distribute.Strategy, *, auto_shard: str = "data") -> Any:
    """Returns a `tf.data.Dataset` batched with the global batch size, or a `DistributedDataset`.

    Takes a data set of either kind, a function without arguments that returns one, or a function of
    a `tf.distribute.InputContext` that shards for itself and batches per replica.

    Args:
      auto_shard: `data` leaves the cutting to raydist. With `off`, `auto` and `file` TensorFlow shards:
        a resumed run then starts its data anew, and uneven batches are weighted as TensorFlow does.
        A policy that the data set's own options name goes before it; Ray Data's `to_tf` names `off`.

    Raises:
      UnsupportedError: It is none of these.
    """
    if isinstance(train_data, tf.data.Dataset):
        policy = _policy_of(train_data) or AutoShardPolicy[auto_shard.upper()]
        is_ours = policy is AutoShardPolicy.DATA or strategy.num_replicas_in_sync == 1
        return train_data if is_ours else _sharded_by_tensorflow(train_data, strategy, policy)
    if isinstance(train_data, tf.distribute.DistributedDataset):
        return train_data
    if callable(train_data):
        if takes_input_context(train_data):
            return strategy.distribute_datasets_from_function(train_data)
        returned = train_data()
        if isinstance(returned, (tf.data.Dataset, tf.distribute.DistributedDataset)):
            return read(returned, strategy, auto_shard=auto_shard)
        raise UnsupportedError(
            f"the train_data function {_name(train_data)} returned {type(returned).__name__}; "
            "return a tf.data.Dataset batched with the global batch size"
        )
    raise UnsupportedError(
        f"train_data is {type(train_data).__name__}; give a tf.data.Dataset batched with the global "
        "batch size, or a function that returns one"
    )


def _policy_of(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy | None:
    """Returns the auto-shard policy that the data set's options name; None for none, or the default."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return None if policy is AutoShardPolicy.AUTO else policy


def _sharded_by_tensorflow(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, policy: tf.data.experimental.AutoShardPolicy
) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return strategy.experimental_distribute_dataset(dataset.with_options(options))


def takes_input_context(function: Callable[..., Any]) -> bool:
    """Whether a train_data function shards for itself: it has one argument without a default."""
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
