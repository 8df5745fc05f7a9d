"""Whether a function of a `tf.data` pipeline makes the same of an element wherever and whenever it runs."""

from __future__ import annotations

from typing import Any

from raydist.training import tf_private

# TensorFlow marks them as stateful, but they only read, check, print, or call other functions, whose
# operations are looked at too.
_HARMLESS = {
    *("Assert", "CheckNumerics", "CheckNumericsV2", "Print", "PrintV2"),
    *("StatefulPartitionedCall", "If", "While", "Case", "StatefulIf", "StatefulWhile", "StatefulCase"),
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"),
    *("LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2"),
    *("LookupTableExport", "LookupTableExportV2"),
    *("ReadFile", "MatchingFiles", "Placeholder", "PlaceholderWithDefault"),
}
_PYTHON = {"PyFunc", "EagerPyFunc"}


def operation_with_state(function: tf_private.DataFunction) -> str | None:
    """Returns the type of an operation that may give something else when it runs again; None for none.

    Such as one that draws random numbers, counts, or runs Python.
    """
    if function.graph is None:
        return "a function of TensorFlow 1"
    for op_type in _operations(function.graph):
        if tf_private.has_state(op_type) and op_type not in _HARMLESS:
            return op_type
    return None


def describe(function: tf_private.DataFunction, op_type: str) -> str:
    """Returns why the function that has this operation runs in every worker."""
    if op_type in _PYTHON:
        return (
            f"the map function {function.name} runs Python (by TensorFlow's operations it would not have to)"
        )
    return f"the map function {function.name} has a state ({op_type}; tf.random.stateless_uniform has none)"


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
