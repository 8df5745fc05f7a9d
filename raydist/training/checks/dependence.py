"""What depends on the other examples of a batch: parts of a traced step, and layers of the forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import op_types
from raydist.tf_private import REDUCED
from raydist.training.checks.findings import TOLERANCE, TOLERANCE_OF_DOUBLES
from raydist.training.replicas import batch_slices


def fed_variables(graph_def: Any, sources: Collection[str]) -> set[str]:
    """Returns the nodes of the variables that get a value which depends on `sources`, names of nodes.

    A value that each replica draws by itself counts as one. What is reduced over the replicas does not.
    """
    functions = {one.signature.name: one for one in graph_def.library.function}
    return _Spread(functions).assigned(graph_def.node, sources)


def builds_on_itself(variable: Any, graph: Any) -> bool:
    """Whether what a traced function makes of a variable depends on its value, as that of a count does."""
    own = graph.capture(variable.handle).op.name
    return own in fed_variables(graph.as_graph_def(), [own])


def draws(graph_def: Any) -> bool:
    """Whether random numbers are drawn in a graph, or in the functions that it has."""
    return any(op_types.draws(node.op) for node in nodes_of(graph_def))


def nodes_of(graph_def: Any) -> list[Any]:
    """Returns the nodes of a graph, and of the functions that it has."""
    return [*graph_def.node, *(node for one in graph_def.library.function for node in one.node_def)]


class _Spread:
    """Follows what depends on something through the nodes of a graph and of the functions that it calls."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions

    def assigned(self, nodes: Iterable[Any], sources: Collection[str], *, is_all: bool = False) -> set[str]:
        """Returns the names of nodes or arguments whose variables get a value that depends on `sources`.

        Args:
          is_all: Whether all values do, because it depends on them whether these nodes run.
        """
        reached, assigned = set(sources), set[str]()
        nodes, before = list(nodes), -1
        while before != len(reached) + len(assigned):  # a function's nodes come in any order
            before = len(reached) + len(assigned)
            for node in nodes:
                inputs = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
                depends = is_all or any(name in reached for name in inputs)
                depends &= not node.name.rpartition("/")[2].startswith(REDUCED)
                if node.op in op_types.ASSIGNMENTS:
                    found = {inputs[0]} if is_all or any(name in reached for name in inputs[1:]) else set()
                else:
                    found = self._assigned_by_call(node, inputs, reached, is_all=is_all)
                    if depends or node.op in op_types.UNEQUAL_DRAWS:
                        reached.add(node.name)
                if node.op in op_types.ADDITIONS and inputs[0] in reached:
                    found.add(inputs[0])
                assigned |= found
                reached |= found  # who reads the variable later, reads that value
        return assigned

    def _assigned_by_call(
        self, node: Any, inputs: Sequence[str], reached: Collection[str], *, is_all: bool
    ) -> set[str]:
        """Returns those of the inputs of a call, a condition or a loop to which that assigns such a value."""
        found = set[str]()
        for body in self._bodies_of(node):
            names = [argument.name for argument in body.signature.input_arg]
            given = inputs[len(inputs) - len(names) :]  # a condition has what it decides by before them
            decides = inputs[: len(inputs) - len(names)]
            sources = [name for name, value in zip(names, given, strict=True) if value in reached]
            is_any = is_all or any(name in reached for name in decides)
            inside = self.assigned(body.node_def, sources, is_all=is_any)
            found |= {value for name, value in zip(names, given, strict=True) if name in inside}
        return found

    def _bodies_of(self, node: Any) -> list[Any]:
        called = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
        called += [one.name for attr in node.attr.values() for one in attr.list.func]
        return [self._functions[name] for name in called if name in self._functions]


# A difference that is none of rounding, not in half precision either.
_CLEAR = 1e-2
_OTHER_SHAPE = 1e9


def mixing_layers(of_whole: Any, of_half: Any, batch: Any, *, model: Any) -> tuple[list[Any], bool]:
    """Returns the layers that give other values to the halves of a batch than to the whole of it.

    Of those that were watched in a rehearsal the innermost ones, and the model itself if none of them can be
    told; nothing if the model's own outputs are the same. And whether that is sure: outputs may differ only
    where a mask ignores them.

    Args:
      of_whole, of_half: Rehearsals of a step which calls `model`, a watched layer too; one for both if it is
        for batches of any size.

    Raises:
      Exception: What the step raises on a part of a batch.
    """
    calls = of_whole.layer_calls
    tensors, of_halves = (
        [tensor for call in one.layer_calls for tensor in (*call.inputs, *call.outputs)]
        for one in (of_whole, of_half)
    )
    size = int(batch_slices.num_rows(batch)) // 2
    whole = of_whole.computed(tensors, batch_slices.rows(batch, 0, 2 * size))
    statistics = whole[len(tensors) :]
    halves = [
        of_half.computed(of_halves, batch_slices.rows(batch, start, size), statistics=statistics)
        for start in (0, size)
    ]
    left = iter(
        _change(*values) for values in itertools.islice(zip(whole, *halves, strict=False), len(tensors))
    )
    own: list[float] = []
    found: list[Any] = []
    for call in calls:
        of_inputs = list(itertools.islice(left, len(call.inputs)))
        of_outputs = list(itertools.islice(left, len(call.outputs)))
        if call.layer is model:
            own += of_outputs
        elif max(of_outputs, default=0.0) > TOLERANCE >= max(of_inputs, default=0.0):
            found += [call.layer] if all(one is not call.layer for one in found) else []
    if max(own, default=0.0) <= TOLERANCE:
        return [], True
    innermost = [one for one in found if not _holds_any(one, found)]
    return innermost or [model], any(_CLEAR < one < _OTHER_SHAPE for one in own)


def mixes_rows(rehearsal: Any, batch: Any, outputs: Sequence[tf.Tensor]) -> bool:
    """Whether rows of some outputs depend on which examples are in their batch, or how many.

    Each half of the batch is computed beside the other one, beside itself, and alone. The first two have as
    many rows, and so are rounded alike.

    Args:
      outputs: Tensors of the rehearsal.

    Raises:
      Exception: What the step raises on a part of a batch.
    """
    size = int(batch_slices.num_rows(batch)) // 2
    whole = rehearsal.computed(outputs, batch_slices.rows(batch, 0, 2 * size))
    for index in (0, 1):
        part = batch_slices.rows(batch, index * size, size)
        twice = rehearsal.computed(outputs, batch_slices.doubled(part))
        once = rehearsal.computed(outputs, part)
        for all_rows, of_twice, of_once in zip(whole[: len(outputs)], twice, once, strict=False):
            if all_rows.ndim:
                own, beside_itself = (np.split(one, 2)[index] for one in (all_rows, of_twice))
                if _difference(beside_itself, own) > TOLERANCE_OF_DOUBLES:
                    return True
                # What are no floats, such as the class of the largest value, may differ by rounding alone.
                if all_rows.dtype.kind in "fV" and _difference(of_once, own) > _CLEAR:
                    return True
    return False


def _change(whole: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Returns how far what was made of the halves is from that of the whole, relative to its largest value.

    `_OTHER_SHAPE` where they cannot be compared, example by example.
    """
    if whole.ndim == 0 or len(whole) != len(first) + len(second):
        is_same = whole.shape == first.shape == second.shape and bool((whole == first).all())
        return 0.0 if is_same and (whole == second).all() else _OTHER_SHAPE
    if first.shape[1:] != whole.shape[1:] or second.shape[1:] != whole.shape[1:]:
        return _OTHER_SHAPE
    return _difference(np.concatenate([first, second]), whole)


def _difference(found: np.ndarray, whole: np.ndarray) -> float:
    """Returns how far values are from others, relative to the largest of these."""
    if found.shape != whole.shape:
        return _OTHER_SHAPE
    if whole.dtype.kind not in "fV":  # bfloat16 is none of NumPy's own types
        return float((found != whole).any())
    one, other = found.astype(np.float64), whole.astype(np.float64)
    largest = np.abs(other).max(initial=0.0)
    return float(np.abs(one - other).max(initial=0.0) / largest) if largest > 0 else 0.0


def _holds_any(layer: Any, others: Sequence[Any]) -> bool:
    inner = getattr(layer, "_flatten_layers", None)
    held = {id(one) for one in inner(include_self=False)} if inner is not None else set()
    return any(id(one) in held for one in others)
