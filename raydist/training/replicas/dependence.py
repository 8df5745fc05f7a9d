"""What in a traced step depends on its batch: read from the graph, without running it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from raydist.training.tf_private import ASSIGNMENTS

# Each replica draws other numbers by these, other than by a seed that all of them count alike.
_UNEQUAL_DRAWS = ("Multinomial", "RandomStandardNormal", "RandomUniform", "TruncatedNormal", "RngReadAndSkip")
_RANDOM = ("Random", "Multinomial", "RngReadAndSkip", "TruncatedNormal")


def fed_variables(graph_def: Any, sources: Collection[str]) -> set[str]:
    """Returns the nodes of the variables that get a value which depends on `sources`, names of nodes.

    A value that each replica draws by itself counts as one.
    """
    functions = {one.signature.name: one for one in graph_def.library.function}
    return _Spread(functions).assigned(graph_def.node, sources)


def draws(graph_def: Any) -> bool:
    """Whether random numbers are drawn in a graph, or in the functions that it has."""
    nodes = [*graph_def.node, *(node for one in graph_def.library.function for node in one.node_def)]
    return any(word in node.op for node in nodes for word in _RANDOM)


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
