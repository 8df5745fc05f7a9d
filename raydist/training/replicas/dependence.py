"""What depends on the other examples of a batch: parts of a traced step, and layers of the forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas import slices
from raydist.training.replicas.loss_verdict import TOLERANCE
from raydist.training.tf_private import ASSIGNMENTS, REDUCED

# Each replica draws other numbers by these, other than by a seed that all of them count alike.
_UNEQUAL_DRAWS = ("Multinomial", "RandomStandardNormal", "RandomUniform", "TruncatedNormal", "RngReadAndSkip")
_RANDOM = ("Random", "Multinomial", "RngReadAndSkip", "TruncatedNormal")


def fed_variables(graph_def: Any, sources: Collection[str]) -> set[str]:
    """Returns the nodes of the variables that get a value which depends on `sources`, names of nodes.

    A value that each replica draws by itself counts as one. What is reduced over the replicas does not.
    """
    functions = {one.signature.name: one for one in graph_def.library.function}
    return _Spread(functions).assigned(graph_def.node, sources)


def draws(graph_def: Any) -> bool:
    """Whether random numbers are drawn in a graph, or in the functions that it has."""
    return any(word in node.op for node in nodes_of(graph_def) for word in _RANDOM)


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
                if node.op in ASSIGNMENTS:
                    found = {inputs[0]} if is_all or any(name in reached for name in inputs[1:]) else set()
                else:
                    found = self._assigned_by_call(node, inputs, reached, is_all=is_all)
                    if depends or node.op in _UNEQUAL_DRAWS:
                        reached.add(node.name)
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


@dataclass(frozen=True)
class _Call:
    """What a layer was given, and what it made of that: flat tensors of the trace."""

    layer: Any
    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]


def mixing_layers(model: Any, inputs: Any, spec: Any, suspects: Sequence[Any]) -> tuple[list[Any], bool]:
    """Returns those of `suspects` that give other values to the halves of a batch than to the whole of it.

    The innermost ones, and `model` itself if none of them can be told; nothing if the model's own outputs are
    the same. And whether that is sure: a mask may leave out what some outputs have more of.

    Args:
      inputs: The model's, for a batch.
      spec: Their structure, with any number of rows.

    Raises:
      Exception: What the model raises on a part of a batch.
    """
    calls: list[_Call] = []
    num_outputs = 0

    def forward(given: Any) -> list[tf.Tensor]:
        nonlocal num_outputs
        others = [one for one in suspects if one is not model]
        with (
            tf_private.as_one_of(1),
            tf_private.constant_draws(lambda constant: None),
            tf_private.own_attributes((one, "call", _observed_call(one, calls.append)) for one in others),
        ):
            outputs = _tensors(model(given, training=True))
        num_outputs = len(outputs)
        recorded = [tensor for call in calls for tensor in (*call.inputs, *call.outputs)]
        return [tf.identity(one) for one in (*outputs, *recorded)]

    run = tf_private.WithoutEffects(forward, spec)
    size = int(slices.num_rows(inputs)) // 2
    whole, first, second = (
        run(slices.rows(inputs, start, count)) for start, count in ((0, 2 * size), (0, size), (size, size))
    )
    changes = [_change(*(one.numpy() for one in values)) for values in zip(whole, first, second, strict=True)]
    own = changes[:num_outputs]
    if max(own, default=0.0) <= TOLERANCE:
        return [], True
    left = iter(one > TOLERANCE for one in changes[num_outputs:])
    found = []
    for call in calls:
        of_inputs = list(itertools.islice(left, len(call.inputs)))
        of_outputs = list(itertools.islice(left, len(call.outputs)))
        if any(of_outputs) and not any(of_inputs):
            found.append(call.layer)
    found = [one for index, one in enumerate(found) if all(one is not other for other in found[:index])]
    innermost = [one for one in found if not _holds_any(one, found)]
    return innermost or [model], any(_CLEAR < one < _OTHER_SHAPE for one in own)


def _observed_call(layer: Any, record: Callable[[_Call], None]) -> Callable[..., Any]:
    call, graph = layer.call, tf.compat.v1.get_default_graph()

    def observed(*args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        # Not those inside of a loop or a condition, which nothing outside of it can read.
        if tf.compat.v1.get_default_graph() is graph:
            record(_Call(layer, _tensors((args, kwargs)), _tensors(outputs)))
        return outputs

    return observed


def _tensors(structure: Any) -> list[tf.Tensor]:
    return [one for one in tf.nest.flatten(structure, expand_composites=True) if tf.is_tensor(one)]


def _change(whole: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Returns how far what was made of the halves is from that of the whole, relative to its largest value.

    `_OTHER_SHAPE` where they cannot be compared, example by example.
    """
    if whole.ndim == 0 or len(whole) != len(first) + len(second):
        is_same = whole.shape == first.shape == second.shape and bool((whole == first).all())
        return 0.0 if is_same and (whole == second).all() else _OTHER_SHAPE
    if first.shape[1:] != whole.shape[1:] or second.shape[1:] != whole.shape[1:]:
        return _OTHER_SHAPE
    halves = np.concatenate([first, second])
    if whole.dtype.kind not in "fV":  # bfloat16 is none of NumPy's own types
        return float((halves != whole).any())
    one, other = halves.astype(np.float64), whole.astype(np.float64)
    largest = np.abs(other).max(initial=0.0)
    return float(np.abs(one - other).max(initial=0.0) / largest) if largest > 0 else 0.0


def _holds_any(layer: Any, others: Sequence[Any]) -> bool:
    inner = getattr(layer, "_flatten_layers", None)
    held = {id(one) for one in inner(include_self=False)} if inner is not None else set()
    return any(id(one) in held for one in others)
