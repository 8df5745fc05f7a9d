"""Whether all workers read a pipeline of `tf.data` in the same order.

Each worker reads the whole pipeline and keeps its rows of each global batch. If the orders differ, some
examples are trained on twice and others not at all, and nothing fails.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster import collectives
from raydist.training.reporting import reporter

# Of each tensor that a pipeline begins with; enough for the names of many files.
_MOST_VALUES = 100_000
# Of what a generator makes, so that nothing waits for it for long.
_NUM_COMPARED = 2
_HANDLES = (tf.variant, tf.resource)


def check(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, is_compared: bool = False) -> None:
    """Notes where the workers read in different orders, as far as the pipelines show it. A collective.

    Args:
      is_compared: Whether what Python makes for it was compared before.
    """
    if collectives.is_alone(strategy):
        return
    if name := out_of_order(dataset):
        reporter.note(
            f".{name} has deterministic=False, so each worker reads in an order of its own: {_EFFECT}; leave "
            "deterministic out"
        )
    generators = [] if is_compared else generators_of(dataset)
    made = _checksum_of([first_elements(one) for one in generators])
    rows = collectives.gather_over_workers(strategy, [fingerprint(dataset), made])
    if named := collectives.inconsistent_names([row[:1] for row in rows]):
        reporter.note(
            f"the dataset of {named} begins with other values, or shuffles by another seed, than that of "
            f"the other workers: {_EFFECT}; make the same dataset in every worker, and seed each shuffle"
        )
    if named := collectives.inconsistent_names([row[1:] for row in rows]):
        reporter.note(
            f"the first elements that the Python generator of a dataset makes in {named} are others than "
            "those of the other workers: each worker makes all and keeps its rows of each batch, so "
            f"{_BY_SEED}"
        )


def generators_of(dataset: tf.data.Dataset) -> list[tf_private.PythonGenerator]:
    """Returns the generators of `from_generator` in a pipeline, but for those that raydist has compared."""
    found = map(tf_private.generator_of, tf_private.nodes_of(dataset))
    return [one for one in found if one is not None and not hasattr(one.function, "raydist_compared")]


def first_elements(generator: tf_private.PythonGenerator) -> Sequence[Any]:
    """Returns what a generator makes first. The next pass begins with it, so nothing is made twice."""
    if not isinstance(generator.function, _Begun):
        generator.replace(_Begun(generator))
    begun = generator.function
    assert isinstance(begun, _Begun)
    return begun.elements


class _Begun:
    """A pass that was begun: what the next pass gets; those after it are as they were."""

    def __init__(self, generator: tf_private.PythonGenerator) -> None:
        self._generator, self._function = generator, generator.function
        self._error: Exception | None = None
        self.elements: list[Any] = []
        try:
            self._rest = generator.begin()
            self.elements += itertools.islice(self._rest, _NUM_COMPARED)
        except Exception as error:  # the user's code; it is raised where the data are read
            self._error = error

    def __call__(self, *args: Any) -> Iterator[Any]:
        self._generator.replace(self._function)
        return self._whole()

    def _whole(self) -> Iterator[Any]:
        yield from self.elements
        if self._error is not None:
            raise self._error
        yield from self._rest


def check_batches(batches: Sequence[Any], strategy: tf.distribute.Strategy, *, name: str) -> None:
    """Notes where the workers' Python makes other batches than each other's. A collective."""
    if collectives.is_alone(strategy):
        return
    rows = collectives.gather_over_workers(strategy, [len(batches), _checksum_of(batches)])
    if named := collectives.inconsistent_names(rows):
        reporter.note(
            f"the first batches of {name} that {named} makes are others than those of the other workers: "
            f"each worker makes all batches and keeps its rows of each, so {_BY_SEED}"
        )


def _checksum_of(batches: Sequence[Any]) -> int:
    checksum = 0
    for component in tf.nest.flatten(list(batches), expand_composites=True):
        array = np.asarray(component)
        content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
        checksum = zlib.crc32(content, zlib.crc32(f"{array.dtype}{array.shape}".encode(), checksum))
    return checksum


_EFFECT = "some examples are trained on twice in an epoch and others not at all"
_BY_SEED = (
    f"if it is their order that differs, {_EFFECT}; draw it from the same seed in every worker (random "
    "augmentation alone does no harm)"
)


def fingerprint(dataset: tf.data.Dataset) -> int:
    """Returns a checksum of seeds, and of the tensors that a pipeline begins with."""
    checksum = 0
    for node in tf_private.nodes_of(dataset):
        for value in _order_of(node):
            checksum = zlib.crc32(value, checksum)
    return checksum


def _order_of(node: tf.data.Dataset) -> Iterator[bytes]:
    yield type(node).__name__.encode()
    for name in ("seed", "seed2"):
        yield repr(tf_private.parameter(node, name)).encode()
    tensors: Any = tf_private.parameter(node, "tensors")
    for tensor in tensors or ():
        if isinstance(tensor, tf.Tensor) and tensor.dtype not in _HANDLES:
            array = np.asarray(tensor)
            yield f"{array.dtype}{array.shape}".encode()
            values = array.reshape(-1)[:_MOST_VALUES]
            yield repr(values.tolist()).encode() if array.dtype.kind == "O" else values.tobytes()


def out_of_order(dataset: tf.data.Dataset) -> str | None:
    """Returns the transformation that may give its elements in any order; None for none."""
    for node in tf_private.nodes_of(dataset):
        if tf_private.is_out_of_order(node):
            return tf_private.name_of_transformation(node)
    return None
