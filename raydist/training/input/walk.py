"""Finds the earliest place in a pipeline of `tf.data` where a worker can pick its rows of each global batch.

The place is before the maps, so that a worker maps only its own examples. It is the same pipeline only
where nothing after the place depends on the examples of others: see `find_place`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.tf_private import Transformation
from raydist.training.input import map_functions


@dataclass(frozen=True)
class Place:
    """Where a worker picks its rows, and what it does with them.

    Attributes:
      source: The dataset whose elements are picked.
      before_batch: What follows it up to the batch, first to last: maps, and what does not look into
        elements.
      batch: The dataset that makes global batches.
      after_batch: What follows that, first to last.
    """

    source: tf.data.Dataset
    before_batch: Sequence[tf.data.Dataset]
    batch: tf.data.Dataset
    after_batch: Sequence[tf.data.Dataset]


@dataclass(frozen=True)
class Walk:
    """What was found in a pipeline.

    Attributes:
      place: None where there is no map that could run on a worker's own rows alone.
      obstacle: Why there are maps that every worker runs on all examples, as a clause; None for no such.
    """

    place: Place | None
    obstacle: str | None = None


_TRANSPARENT = {
    *(Transformation.REPEAT, Transformation.TAKE, Transformation.SKIP, Transformation.PREFETCH),
    *(Transformation.OPTIONS, Transformation.CARDINALITY),
}


def find_place(dataset: tf.data.Dataset) -> Walk:
    """Walks from the end of a pipeline of global batches to its beginning.

    After the batch there may be maps that treat each row by itself; before it, maps of one element to one
    that have no state. Repeating, taking and skipping elements, or batches, is the same on either side of
    such a map. Everything else ends the walk: what is before it is left as it is.
    """
    obstacle, after_batch, node = _walk_to_batch(dataset)
    if obstacle is not None:
        return Walk(None, obstacle if _maps_anything(node) else None)
    batch = node
    obstacle, before_batch, node = _walk_to_source(tf_private.input_of(batch))
    has_maps = any(map(_is_map, (*before_batch, *after_batch)))
    place = Place(node, before_batch, batch, after_batch) if has_maps else None
    return Walk(place, obstacle if _maps_anything(node) else None)


def _walk_to_batch(
    node: tf.data.Dataset,
) -> tuple[str | None, list[tf.data.Dataset], tf.data.Dataset]:
    passed: list[tf.data.Dataset] = []
    while True:
        kind = tf_private.transformation_of(node)
        if kind is Transformation.BATCH:
            obstacle = None if _is_cut_alike(node.element_spec) else "its batches are sparse tensors"
            return obstacle, passed, node
        if kind is Transformation.PADDED_BATCH:
            obstacle = None if has_static_rows(node.element_spec) else _PADS
            return obstacle, passed, node
        if kind is Transformation.MAP:
            [function] = tf_private.functions_of(node)
            if not map_functions.is_row_wise(function, tf_private.input_of(node).element_spec):
                reason = _UNKNOWN_LABELS if function.name == CLASS_WEIGHT else _MIXES.format(function.name)
                return reason, passed, node
        elif kind not in _TRANSPARENT:
            return _comes_after(node), passed, node
        passed.insert(0, node)
        node = tf_private.input_of(node)


# The name of the functions that raydist maps where class_weight is given.
CLASS_WEIGHT = "class_weight"
_UNKNOWN_LABELS = (
    "class_weight is given, and the shape of the labels is not known (give them tf.ensure_shape)"
)
_PADS = ".padded_batch pads to the longest example of the global batch (fixed padded_shapes do not)"
_MIXES = "the map function {} after .batch may mix the examples of a batch (put it before .batch)"


def _comes_after(node: tf.data.Dataset) -> str:
    name = tf_private.name_of_transformation(node)
    if _maps_inside(node):
        return f"the map is inside of .{name} (put it after that)"
    return f".{name} comes after .map (put .map after that)"


def _walk_to_source(
    node: tf.data.Dataset,
) -> tuple[str | None, list[tf.data.Dataset], tf.data.Dataset]:
    passed: list[tf.data.Dataset] = []
    found = node, 0  # the input of the first map, and how much was passed by then
    obstacle: str | None = None
    while True:
        kind = tf_private.transformation_of(node)
        if kind is Transformation.MAP:
            [function] = tf_private.functions_of(node)
            op_type = map_functions.operation_with_state(function)
            if op_type is not None:
                obstacle = map_functions.describe(function, op_type)
                break
            passed.insert(0, node)
            node = tf_private.input_of(node)
            found = node, len(passed)
        elif kind in _TRANSPARENT:
            passed.insert(0, node)
            node = tf_private.input_of(node)
        else:
            obstacle = _comes_after(node)
            break
    source, count = found
    # What is before the first map stays where it is.
    return obstacle, passed[len(passed) - count :], source


def _is_map(node: tf.data.Dataset) -> bool:
    return tf_private.transformation_of(node) is Transformation.MAP


def _maps_anything(node: tf.data.Dataset) -> bool:
    """Whether there is a map in what a dataset is made of, itself included."""
    return any(_is_users_map(one) or _maps_inside(one) for one in tf_private.nodes_of(node))


def notes_on_parallel_draws(dataset: tf.data.Dataset) -> list[str]:
    """Returns a sentence for each parallel map of a pipeline whose calls change something for each other."""
    functions = [
        function
        for node in tf_private.nodes_of(dataset)
        if _is_map(node) and tf_private.parameter(node, "num_parallel_calls") is not None
        for function in tf_private.functions_of(node)
    ]
    notes = map(map_functions.note_on_parallel_draws, functions)
    return [one for one in notes if one is not None]


def _is_users_map(node: tf.data.Dataset) -> bool:
    # TensorFlow, Keras and libraries whose `fit` prepares data make maps that the user cannot move.
    return _is_map(node) and all(one.is_users for one in tf_private.functions_of(node))


def _maps_inside(node: tf.data.Dataset) -> bool:
    return any(one.is_users and map_functions.maps_examples(one) for one in tf_private.functions_of(node))


def _is_cut_alike(element_spec: Any) -> bool:
    """Whether a batch of some rows has the rows that the batch of all has.

    Not so with sparse tensors of unknown width: a batch is as wide as its widest row.
    """
    return all(
        isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec))
        or (isinstance(spec, tf.SparseTensorSpec) and spec.shape[1:].is_fully_defined())
        for spec in tf.nest.flatten(element_spec)
    )


def has_static_rows(element_spec: Any) -> bool:
    """Whether all sizes but that of the batch are known."""
    shapes = [getattr(spec, "shape", tf.TensorShape([])) for spec in tf.nest.flatten(element_spec)]
    return all(shape[1:].is_fully_defined() for shape in shapes)
