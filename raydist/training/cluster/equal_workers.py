"""Whether all workers have equally many batches, and hold the same weights and other variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from isal import isal_zlib

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster import collectives, virtual_strategy
from raydist.training.cluster.collectives import by_worker, inconsistent_workers, worker_names

ENDLESS = (
    "the dataset has no end; give steps_per_epoch to fit, or steps to evaluate and predict, or a dataset "
    "that ends, without .repeat()"
)


def check_sizes(strategy: tf.distribute.Strategy, dataset: Any, *, num_steps: int | None) -> None:
    """Checks that an epoch ends, and on all workers after equally many batches. A collective.

    Where no worker knows how many it has, as with a generator, TensorFlow asks before each step whether
    any still has one, and the others continue with empty batches.

    Args:
      num_steps: Of an epoch; None where its data's end ends it.

    Raises:
      UnsupportedError: It does not; in each worker.
    """
    size = size_of(dataset)
    if size == tf.data.INFINITE_CARDINALITY and num_steps is None:
        raise UnsupportedError(ENDLESS)
    if collectives.is_alone(strategy):
        return
    rows = collectives.gather_over_workers(strategy, [size, num_steps or 0])
    problem = describe_difference([row[0] for row in rows], [row[1] for row in rows])
    if problem is not None:
        raise UnsupportedError(problem)


def describe_difference(sizes: Sequence[int], steps: Sequence[int]) -> str | None:
    """Returns what differs between the workers, with its remedy; None where nothing does.

    Args:
      sizes: Each worker's number of batches, or what TensorFlow's `cardinality` says in place of it.
      steps: Each worker's steps of an epoch; 0 for none.
    """
    if len(set(sizes)) > 1:
        return (
            f"the dataset has not as many batches on each worker: {by_worker(map(_words, sizes))}; each step "
            "needs all of them: give each as many with .take(n), or let it begin again with .repeat() and "
            "give steps_per_epoch"
        )
    if len(set(steps)) > 1:
        steps_by_worker = by_worker(count or "not given" for count in steps)
        return f"steps_per_epoch differs between the workers: {steps_by_worker}; give all the same"
    return None


def size_of(dataset: Any) -> int:
    """Returns the batches of a dataset, or what TensorFlow's `cardinality` says in place of them."""
    cardinality = dataset.cardinality  # a distributed dataset has a property
    return int(cardinality() if callable(cardinality) else cardinality)


def _words(size: int) -> str:
    return {tf.data.INFINITE_CARDINALITY: "no end", tf.data.UNKNOWN_CARDINALITY: "unknown"}.get(
        size, str(size)
    )


Gather = Callable[[Sequence[int]], Sequence[Sequence[int]]]

_MOST_NAMED = 3
# The states of Keras 3's SeedGenerator and of tf.random.Generator.
_RANDOM = ("seed_generator_state", "StateVar")


def check(variables: Iterable[Any], gather: Gather, *, when: str) -> str | None:
    """Compares `tf.Variable`s between the workers: a collective, about 0.2 s for 500 MB.

    Args:
      when: Begins the error's sentence, such as "before the first step of this fit".

    Returns:
      A sentence for the run's notes if what may differ does, else None.

    Raises:
      UnsupportedError: What has to be equal differs; in each worker.
    """
    shared, own = _differences(variables, gather)
    if shared:
        raise UnsupportedError(
            f"{when} {describe(shared)}; each worker would train a model of its own: begin with "
            "the same values in all of them, from one seed or one file, and change them in all or in none"
        )
    if own:
        return (
            f"{describe(own)}; random generators, and variables that are made outside of the "
            "strategy's scope, may differ, and results then depend on the number of workers"
        )
    return None


def _differences(
    variables: Iterable[Any], gather: Gather
) -> tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]]:
    """Returns what has to be equal and is not, and what may differ: by name the workers unlike most.

    What may are random generators, which may have another seed in each worker, and variables that were made
    outside of the strategy's scope, of which each worker has one. What is synchronized on read is left out:
    each worker has its own part of it. So is what each virtual replica has for itself.
    """
    shared = list({id(one): one for one in variables if not _is_divided(one)}.values())
    checksums = [_checksum(one) for one in shared]
    whole = isal_zlib.crc32(np.asarray(checksums, "int64").tobytes())
    rows = gather([len(checksums), whole])
    if not inconsistent_workers(rows):
        return {}, {}
    counts = [row[:1] for row in rows]
    if inconsistent := inconsistent_workers(counts):
        listed = by_worker(f"has {count}" for [count] in counts)
        return {f"the number of variables ({listed})": inconsistent}, {}
    rows = gather(checksums)
    found: dict[bool, dict[str, Sequence[int]]] = {False: {}, True: {}}
    for variable, column in zip(shared, zip(*rows, strict=True), strict=True):
        if inconsistent := inconsistent_workers([[one] for one in column]):
            found[_is_own(variable)][str(variable.name)] = inconsistent
    return found[False], found[True]


def statistics_of(model: Any) -> list[Any]:
    """Returns the float variables that Keras 3's layers change by each replica's part of a batch.

    Keras 3 leaves them to each replica; raydist makes them equal at the end of an epoch. A frozen layer
    changes none.
    """
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    trained = (layer for layer in layers if layer.trainable)
    own = (one for layer in trained for one in getattr(layer, "_non_trainable_variables", ()))
    return [one.value for one in own if tf.as_dtype(one.dtype).is_floating]


def _is_divided(variable: Any) -> bool:
    return tf_private.is_synchronized_on_read(variable) or virtual_strategy.is_own(variable)


def _checksum(variable: Any) -> int:
    value = np.asarray(tf_private.local_value(variable))
    content = value if value.dtype.kind != "O" else np.frombuffer(repr(value.tolist()).encode(), np.uint8)
    return isal_zlib.crc32(np.ascontiguousarray(content).reshape(-1).view(np.uint8).data)


def _is_own(variable: Any) -> bool:
    is_random = any(name in str(variable.name) for name in _RANDOM)
    return is_random or not isinstance(variable, tf.distribute.DistributedValues)


def describe(differing: Mapping[str, Sequence[int]]) -> str:
    names, indices = list(differing), sorted({index for of_one in differing.values() for index in of_one})
    more = f" and {len(names) - _MOST_NAMED} more variables" if len(names) > _MOST_NAMED else ""
    verb = "differs" if len(names) == 1 else "differ"
    return f"{', '.join(names[:_MOST_NAMED])}{more} of {worker_names(indices)} {verb} from the other workers'"
