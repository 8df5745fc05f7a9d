"""What a function of a `tf.data` pipeline does, as its operations show.

Whether it makes the same of an element wherever and whenever it runs, and whether it treats each row of a
batch by itself.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import op_types, tf_private


def operation_with_state(function: tf_private.DataFunction) -> str | None:
    """Returns the type of an operation that may give something else when it runs again; None for none.

    Such as one that draws random numbers, counts, or runs Python.
    """
    if function.graph is None:
        return "a function of TensorFlow 1"
    for op_type in _operations(function.graph):
        if tf_private.has_state(op_type) and op_type not in op_types.REPEATABLE:
            return op_type
    return None


def describe(function: tf_private.DataFunction, op_type: str) -> str:
    """Returns why the function that has this operation runs in every worker."""
    if op_type in op_types.PYTHON:
        return (
            f"the map function {function.name} runs Python (by TensorFlow's operations it would not have to)"
        )
    return f"the map function {function.name} has a state ({op_type}; tf.random.stateless_uniform has none)"


def note_on_parallel_draws(function: tf_private.DataFunction) -> str | None:
    """Returns what comes of calling a function in parallel that draws or counts; None for others."""
    op_type = operation_with_state(function)
    if op_type is None or function.graph is None or op_type in op_types.PYTHON:
        return None
    return (
        f"the map function {function.name} draws or counts ({op_type}) in parallel calls, in an order that "
        "changes, so examples differ between workers, attempts and runs; leave num_parallel_calls out, or "
        "use tf.random.stateless_uniform and the like with a seed from the data"
    )


def maps_examples(function: tf_private.DataFunction) -> bool:
    """Whether a function that returns a dataset, as of `interleave`, maps what is in it."""
    return function.graph is not None and any(
        one.startswith(("MapDataset", "ParallelMapDataset")) for one in _operations(function.graph)
    )


def _operations(graph: Any) -> set[str]:
    """Returns the types of all operations in a graph and in the functions that it calls."""
    operations = graph.get_operations()
    found = {op.type for op in operations}
    if not any(attribute.type.endswith("func") for op in operations for attribute in op.op_def.attr):
        return found  # without a copy of the graph, whose constants may be large
    library = graph.as_graph_def().library
    return found.union(*({node.op for node in one.node_def} for one in library.function))


class Dependence(enum.Enum):
    """What a tensor in a function of a batch depends on.

    Attributes:
      FIXED: On nothing in the batch.
      ROWS: Its row i on row i of the batch alone, for each row of the batch.
      ANY: Perhaps on everything.
    """

    FIXED = enum.auto()
    ROWS = enum.auto()
    ANY = enum.auto()


def is_row_wise(function: tf_private.DataFunction, element_spec: Any) -> bool:
    """Whether a function gives the same rows for a part of a batch as for the whole of it."""
    specs = tf.nest.flatten((element_spec, function.spec))
    if not all(isinstance(one, tf.TensorSpec) and one.shape.rank for one in specs):
        return False
    if operation_with_state(function) is not None:
        return False
    graph: Any = function.graph
    # What follows them among the inputs is captured from outside.
    known = {one.name: Dependence.ROWS for one in graph.inputs[: len(tf.nest.flatten(element_spec))]}
    for op in graph.get_operations():
        found = _outputs_of(op, [known[one.name] for one in op.inputs])
        for one, dependence in zip(op.outputs, found, strict=True):
            known.setdefault(one.name, dependence)
    return all(known[one.name] is Dependence.ROWS for one in graph.outputs)


def _outputs_of(op: tf.Operation, inputs: list[Dependence]) -> list[Dependence]:
    if all(one is Dependence.FIXED for one in inputs):
        return [Dependence.FIXED] * len(op.outputs)
    if Dependence.ANY in inputs:
        return [Dependence.ANY] * len(op.outputs)
    if op.type == "ParseExampleV2":
        # Features of unknown length are padded to the longest of the batch, or not dense.
        return [_if_rows(one.shape.rank and one.shape[1:].is_fully_defined()) for one in op.outputs]
    is_kept = _keeps_rows(op, [one is Dependence.ROWS for one in inputs])
    return [_if_rows(is_kept)] * len(op.outputs)


def _if_rows(is_kept: Any) -> Dependence:
    return Dependence.ROWS if is_kept else Dependence.ANY


def _keeps_rows(op: tf.Operation, is_rows: list[bool]) -> bool:
    """Whether row i of an operation's output depends on row i of those inputs alone that have rows."""
    rank = op.inputs[0].shape.rank
    is_first_alone = is_rows[0] and not any(is_rows[1:])
    match op.type:
        case one if one in op_types.ELEMENT_WISE:
            return _broadcasts(op, is_rows)
        case one if one in op_types.REDUCTIONS:
            return is_first_alone and _leaves_rows(op.inputs[1], rank)
        case one if one in op_types.RESIZES:
            return is_first_alone
        case "LookupTableFindV2":
            return is_rows == [False, True, False] and op.inputs[2].shape.rank == 0
        case "GatherV2":  # what a fixed tensor has at the rows' indices
            is_of_fixed = is_rows == [False, True, False] and op.get_attr("batch_dims") == 0
            return is_of_fixed and _constant(op.inputs[2]) == 0
        case "Softmax" | "LogSoftmax":
            return rank is not None and rank > 1
        case "ConcatV2":
            return all(is_rows[:-1]) and not is_rows[-1] and _leaves_rows(op.inputs[-1], rank)
        case "ExpandDims":
            return is_first_alone and rank is not None and _leaves_rows(op.inputs[1], rank + 1)
        case "MatMul":
            return is_rows == [True, False] and not op.get_attr("transpose_a")
        case "OneHot":
            return is_first_alone and op.get_attr("axis") == -1
        case "Pack":
            return all(is_rows) and rank is not None and op.get_attr("axis") % (rank + 1) != 0
        case "Reshape":
            return is_first_alone and _reshapes_each_row(op)
        case "Squeeze":
            given = op.get_attr("squeeze_dims")
            return rank is not None and bool(given) and 0 not in {axis % rank for axis in given}
        case "StridedSlice":
            return is_first_alone and rank is not None and _slices_each_row(op)
        case "Transpose":
            order = _constant(op.inputs[1])
            return is_first_alone and order is not None and order[0] == 0
        case _:
            return False


def _broadcasts(op: tf.Operation, is_rows: list[bool]) -> bool:
    """Whether the rows of the inputs stay beside one another, and what is fixed beside each of them."""
    ranks = {one.shape.rank for one, rows in zip(op.inputs, is_rows, strict=True) if rows}
    if len(ranks) != 1 or None in ranks:
        return False
    [rank] = ranks
    shapes = [one.shape for one, rows in zip(op.inputs, is_rows, strict=True) if not rows]
    return all(
        one.rank is not None and (one.rank < rank or (one.rank == rank and one[0] == 1)) for one in shapes
    )


def _constant(tensor: tf.Tensor) -> np.ndarray | None:
    value = tf.get_static_value(tensor)
    return None if value is None else np.asarray(value)


def _leaves_rows(axes: tf.Tensor, rank: int | None) -> bool:
    """Whether axes are known, and the first one, of the rows, is none of them."""
    values = _constant(axes)
    return values is not None and rank is not None and all(int(one) % rank for one in values.ravel())


def _reshapes_each_row(op: tf.Operation) -> bool:
    """Whether there are as many values in a row as before, and as many rows as that makes."""
    shape, row = _constant(op.inputs[1]), op.inputs[0].shape[1:]
    if shape is None or not row.is_fully_defined() or len(shape) < 1:
        return False
    return bool(shape[0] == -1 and (shape[1:] > 0).all() and np.prod(shape[1:]) == row.num_elements())


def _slices_each_row(op: tf.Operation) -> bool:
    """Whether a slice such as `x[:, 2:4]` takes of all rows the same part."""
    strides = _constant(op.inputs[3])
    is_other = op.get_attr("new_axis_mask") | op.get_attr("shrink_axis_mask") | op.get_attr("ellipsis_mask")
    is_whole = op.get_attr("begin_mask") & op.get_attr("end_mask") & 1
    return strides is not None and bool(is_whole and strides[0] == 1) and not is_other & 1
