"""Reads `train_data` by TensorFlow's own conventions.

In come a `tf.data.Dataset`, a function that makes one, or batches of raydist.data; out goes a dataset of this
worker's data. trainers/ calls `read` and `read_batches`, and parameter_server/ what checks functions.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.cluster import equal_workers
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.input import cut, recipes, shuffle_seeds
from raydist.training.replicas import batch_slices
from raydist.training.reporting.reporter import note

NO_WEIGHT = (
    "class_weight has no weight for a class of the labels, and tf_keras needs one for each class; give the "
    "others a weight of 1.0"
)


def classes_of(labels: tf.Tensor) -> tf.Tensor:
    """Returns the class of each label; of a one-hot label the place of its largest number."""
    if labels.shape.rank == 1:
        return _as_ints(labels)
    if labels.shape[-1:].is_fully_defined():  # without a condition, so that it can be told to be row by row
        return tf.argmax(labels, axis=-1) if labels.shape[-1] > 1 else _as_ints(tf.squeeze(labels, axis=-1))
    return tf.cond(
        tf.shape(labels)[-1] > 1,
        lambda: tf.argmax(labels, axis=-1),
        lambda: _as_ints(labels[..., 0]),
    )


def weights_of_classes(class_weight: Mapping[int, float], dtype: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of classes that gives the weight of each; 1.0 if it has none.

    It treats each class by itself, and its operations show that: so workers share the work (walk.py).
    """
    first, last = min(class_weight), max(class_weight)
    classes = np.array(sorted(class_weight), np.int64)
    weights = np.array([class_weight[one] for one in sorted(class_weight)], dtype)
    if last - first < _MOST_CLASSES:
        table = np.ones(last - first + 1, dtype)
        table[classes - first] = weights

        def by_table(labels: tf.Tensor) -> tf.Tensor:
            is_within = (labels >= first) & (labels <= last)
            places = tf.clip_by_value(labels, first, last) - first
            return tf.where(is_within, tf.gather(table, places), tf.ones([], table.dtype))

        return by_table

    def by_search(labels: tf.Tensor) -> tf.Tensor:
        # The first class that is not below the label.
        places = tf.minimum(tf.searchsorted(classes, tf.reshape(labels, [-1])), len(classes) - 1)
        places = tf.reshape(places, tf.shape(labels))
        is_known = tf.gather(classes, places) == labels
        return tf.where(is_known, tf.gather(weights, places), tf.ones([], weights.dtype))

    return by_search


# Of which a table is made; it takes 4 bytes for each.
_MOST_CLASSES = 1_000_000


def _as_ints(labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(labels) if labels.dtype.is_floating else labels, tf.int64)


AutoShardPolicy = tf.data.experimental.AutoShardPolicy
# What TensorFlow says of `from_generator`, and Keras 3 of generators.
_OTHER_SIZES = re.compile(r"enerator`? yielded an element of shape (.+?) where .* shape (.+?) was expected")


def read_batches(
    train_data: Any, strategy: tf.distribute.Strategy, *, auto_shard: str = "data", skip: int = 0, count: int
) -> Any:
    """Returns `count` batches of passes over the data, distributed, from batch `skip` on.

    Nothing is read beyond: a shuffle would take the seed of a pass that is not trained on.
    """
    if isinstance(train_data, Batches):
        return recipes.parts_of_workers(train_data, strategy, start_step=skip)
    if callable(train_data) and takes_input_context(train_data):
        _note_own_sharding(strategy)
        num_local = len(strategy.extended.worker_devices)  # each takes one per-replica batch a step

        def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return train_data(context).repeat().skip(skip * num_local)

        return strategy.distribute_datasets_from_function(endless)
    if callable(train_data):
        train_data = made_by(train_data)
    if isinstance(train_data, tf.data.Dataset):
        train_data = shuffle_seeds.passes_from(train_data, skip).take(count)
    found = read(train_data, strategy, auto_shard=auto_shard)
    return (
        cut.cut_for_replicas(found, strategy, endless=True) if isinstance(found, tf.data.Dataset) else found
    )


def read(
    train_data: Any, strategy: tf.distribute.Strategy, *, auto_shard: str = "data", name: str = "train_data"
) -> Any:
    """Returns a `tf.data.Dataset` batched with the global batch size, or a `DistributedDataset`.

    Takes a dataset of either kind, a function without arguments that returns one, or a function of
    a `tf.distribute.InputContext` that shards for itself and batches per replica. Of batches of
    raydist.data it is one epoch, regardless of their `epochs`: what validation makes of each.

    Args:
      auto_shard: `data` leaves the cutting to raydist. With `off`, `auto` and `file` TensorFlow shards:
        a resumed run then reads its data from the start, and uneven batches are weighted as TensorFlow does.
        A policy that the dataset's own options name goes before it; Ray Data's `to_tf` names `off`.

    Raises:
      UnsupportedError: It is none of these.
    """
    if isinstance(train_data, Batches):
        return recipes.parts_of_workers(train_data.for_epochs(1), strategy)
    if isinstance(train_data, tf.data.Dataset):
        policy = _policy_of(train_data) or AutoShardPolicy[auto_shard.upper()]
        is_ours = policy is AutoShardPolicy.DATA or strategy.num_replicas_in_sync == 1
        return train_data if is_ours else _sharded_by_tensorflow(train_data, strategy, policy)
    if isinstance(train_data, tf.distribute.DistributedDataset):
        cut.note_equal_parts(strategy)
        return train_data
    if callable(train_data):
        if takes_input_context(train_data):
            _note_own_sharding(strategy)
            return strategy.distribute_datasets_from_function(train_data)
        return read(made_by(train_data, name), strategy, auto_shard=auto_shard)
    raise UnsupportedError(
        f"{name} is {type(train_data).__name__}; give a tf.data.Dataset batched with the global "
        "batch size, or a function that returns one"
    )


def _note_own_sharding(strategy: tf.distribute.Strategy) -> None:
    cut.note_equal_parts(strategy)
    if is_virtual(strategy):
        note(
            "the function of an InputContext divides the data among the workers, so which virtual replica "
            "trains on which examples depends on the number of workers; give a function without arguments"
        )


def made(train_data: Any) -> Any:
    """Returns what a function without arguments makes of itself; other data as they are."""
    is_function = callable(train_data) and not isinstance(train_data, (Batches, tf.data.Dataset))
    return made_by(train_data) if is_function and not takes_input_context(train_data) else train_data


def made_by(function: Callable[[], Any], name: str = "train_data") -> Any:
    """Returns the dataset that a function makes; raises UnsupportedError if it makes something else."""
    returned = function()
    if isinstance(returned, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        return returned
    function_name = getattr(function, "__qualname__", type(function).__name__)
    raise UnsupportedError(
        f"the {name} function {function_name} returned {type(returned).__name__}; "
        "return a tf.data.Dataset batched with the global batch size"
    )


def _policy_of(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy | None:
    """Returns the auto-shard policy that the dataset's options name; None for none, or the default."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return None if policy is AutoShardPolicy.AUTO else policy


def _sharded_by_tensorflow(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, policy: tf.data.experimental.AutoShardPolicy
) -> Any:
    cut.note_equal_parts(strategy)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return strategy.experimental_distribute_dataset(dataset.with_options(options))


@contextlib.contextmanager
def naming_mistakes() -> Iterator[None]:
    """Says what to do about data that TensorFlow or tf_keras refuse, at the latest with the first batch."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, ValueError) as error:
        remedy = _remedy(str(error))
        if remedy is None:
            raise
        raise UnsupportedError(remedy) from error


def _remedy(message: str) -> str | None:
    if few := re.search(r"only has (\d+) file\(s\).* required (\d+) shards", message):
        files = "1 file" if few[1] == "1" else f"{few[1]} files"
        return (
            f"the dataset reads {files}, too few for {few[2]} workers under its auto-shard policy; "
            "use --auto-shard data, or write at least one file for each worker"
        )
    if sizes := _OTHER_SIZES.search(message):
        return (
            f"the data yield an array of the shape {sizes[1]}, and {sizes[2]} was expected, from the first "
            "two batches or the output_signature; let the first two batches differ in each size that may "
            "vary, or give a tf.data.Dataset.from_generator with None for it in output_signature"
        )
    return next((remedy for text, remedy in _REMEDIES.items() if text in message), None)


_REMEDIES = {
    "Could not find callback with key=pyfunc": (
        "the dataset that ctx.distribute got runs Python (from_generator, py_function, numpy_function), "
        "which data workers cannot; do that after ctx.distribute, or by TensorFlow's own operations"
    ),
    "unshardable source dataset": (
        "the dataset reads no files that TensorFlow could divide among the workers, and its auto-shard "
        "policy is file; use --auto-shard data"
    ),
    batch_slices.UNLIKE_ROWS: batch_slices.UNLIKE_ROWS,
    NO_WEIGHT: NO_WEIGHT,
    "When providing an infinite dataset, you must": equal_workers.ENDLESS,
}


def takes_input_context(function: Callable[..., Any]) -> bool:
    """Whether a train_data function shards for itself: it has one argument without a default."""
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


def function_of(data: Any, name: str) -> Callable[..., Any]:
    """Returns a function that makes the data in each worker under parameter_server.

    Raises:
      UnsupportedError: They cannot be made there.
    """
    if isinstance(data, tf.data.Dataset):
        if tf_private.is_of_data_workers(data):
            raise UnsupportedError(
                f"{name} is what ctx.distribute returned, and under parameter_server each worker makes it; "
                "give a function: lambda: ctx.distribute(dataset).batch(n)"
            )
        remade = tf_private.remake(data)
        if remade is None:
            raise UnsupportedError(
                f"{name} is a dataset that holds more than 2 GB in its graph, which no worker can get; give "
                "the arrays, or a function that reads them from files"
            )
        make, is_whole = remade
        if is_whole:
            return make
        raise UnsupportedError(
            f"{name} is a dataset that runs Python (from_generator, py_function, numpy_function), which no "
            "worker has. Use TensorFlow's own operations, or give arrays or batches of raydist.data"
        )
    if callable(data):
        return data
    raise UnsupportedError(
        f"{name} is {type(data).__name__}; parameter_server needs a tf.data.Dataset, a function that returns "
        "one, arrays or batches of raydist.data"
    )
