"""Whether the workers have equally many batches, asked before they take the first.

A step needs all workers. One whose data end earlier, or that counts its steps differently, would leave
the others in a collective that no peer joins: TensorFlow then waits, or mixes up two collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.cluster import collectives

ENDLESS = (
    "the dataset has no end; give steps_per_epoch to fit, or steps to evaluate and predict, or a dataset "
    "that ends, without .repeat()"
)

_MOST_NAMED = 8


def check_sizes(strategy: tf.distribute.Strategy, dataset: Any, *, num_steps: int | None) -> None:
    """Checks that an epoch ends, and on all workers after equally many batches. A collective.

    Where no worker knows how many it has, as with a generator, TensorFlow asks before each step whether
    any still has one, and the others go on with empty batches.

    Args:
      num_steps: Of an epoch; None where its data's end ends it.

    Raises:
      UnsupportedError: It does not; in each worker.
    """
    size = _size_of(dataset)
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
        sizes_by_worker = _by_worker([_words(size) for size in sizes])
        return (
            f"the dataset has not as many batches on each worker: {sizes_by_worker}; each step needs all of "
            "them: give each as many with .take(n), or let it begin again with .repeat() and give "
            "steps_per_epoch"
        )
    if len(set(steps)) > 1:
        steps_by_worker = _by_worker([str(count) if count else "not given" for count in steps])
        return f"steps_per_epoch differs between the workers: {steps_by_worker}; give all the same"
    return None


def _size_of(dataset: Any) -> int:
    cardinality = dataset.cardinality  # a distributed dataset has a property
    return int(cardinality() if callable(cardinality) else cardinality)


def _words(size: int) -> str:
    return {tf.data.INFINITE_CARDINALITY: "no end", tf.data.UNKNOWN_CARDINALITY: "unknown"}.get(
        size, str(size)
    )


def _by_worker(values: Sequence[str]) -> str:
    named = ", ".join(f"worker/{index} {words}" for index, words in enumerate(values[:_MOST_NAMED]))
    return f"{named} and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else named
