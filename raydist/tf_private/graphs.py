"""Questions to the graph of a traced function: which variables it uses and changes, what computes what."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import values as distributed_values
from tensorflow.python.framework import auto_control_deps_utils, op_def_registry

from raydist import op_types
from raydist.tf_private.attributes import changed
from raydist.tf_private.variables import distributed, handles_of


@contextlib.contextmanager
def noting_unknown_sizes(on_question: Callable[[], None]) -> Iterator[None]:
    """Calls `on_question` where a shape is asked for a size that is not known, or for all its sizes.

    By a subscript, by unpacking or by `as_list`, from the thread's own code or a library's.
    """
    of_shape = tf.TensorShape
    subscript, sizes_of, as_list = of_shape.__getitem__, of_shape.__iter__, of_shape.as_list

    def noted_subscript(self: Any, key: Any) -> Any:
        size = subscript(self, key)
        if size is None:
            on_question()
        return size

    def noted_sizes(self: Any) -> Iterator[int | None]:
        sizes = list(sizes_of(self))
        if None in sizes:
            on_question()
        return iter(sizes)

    def noted_list(self: Any) -> list[int | None]:
        sizes: list[int | None] = as_list(self)
        if None in sizes:
            on_question()
        return sizes

    with changed(of_shape, __getitem__=noted_subscript, __iter__=noted_sizes, as_list=noted_list):
        yield


def _variables_in(graph: Any) -> list[Any]:
    """Returns the variables that a traced function has seen; of distributed ones their copies."""
    is_whole = distributed_values.DistributedVariable
    return [copy for one in graph.variables for copy in (one.values if isinstance(one, is_whole) else (one,))]


def captured_variables(graph: Any) -> list[Any]:
    """Returns the variables that a traced function uses, whole ones if distributed, alike in each process."""
    by_handle = {id(one.handle): one for one in _variables_in(graph)}  # in an order that differs
    found = (distributed(by_handle[id(outer)]) for outer, _ in graph.captures if id(outer) in by_handle)
    return list({id(one): one for one in found}.values())


def assigned_variables(graph: Any) -> list[Any]:
    """Returns the variables outside of a traced function that it assigns to, whole ones if distributed."""
    assigned = {op.inputs[0].op.name for op in graph.get_operations() if op.type in op_types.ASSIGNMENTS}
    return variables_named(graph, assigned)


def variables_named(graph: Any, nodes: Collection[str]) -> list[Any]:
    """Returns the variables outside of a traced function that these nodes of it stand for, whole ones."""
    handles = {id(outer) for outer, inner in graph.captures if inner.op.name in nodes}
    found = [distributed(one) for one in _variables_in(graph) if id(one.handle) in handles]
    return list({id(one): one for one in found}.values())


def captured_by(placeholder: tf.Tensor) -> Any:
    """Returns the tensor of outside that stands for `placeholder` in a traced function; None for an argument.

    It is symbolic if the function is part of another one, as the body of a loop is.
    """
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def changed_variables(graph: Any) -> list[Any]:
    """Returns the variables outside of a traced function that it changes, whole ones if distributed.

    What functions that it calls change is among them: TensorFlow itself sets these in order by what each call
    only reads (auto_control_deps.py).
    """
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    by_handle = {id(one.handle): one for one in _variables_in(graph)}
    outside = {id(inner): id(outer) for outer, inner in graph.captures}
    handles = [outside.get(id(one)) for index, one in enumerate(graph.inputs) if index not in read_only]
    found = [distributed(by_handle[handle]) for handle in handles if handle in by_handle]
    return list({id(one): one for one in found}.values())


def writers_of(variable: Any, graph: Any) -> list[tf.Operation]:
    """Returns the operations of a function's graph so far that write a variable, or may do so."""
    handle = graph.capture(variable.handle)
    return [op for op in handle.consumers() if auto_control_deps_utils._op_writes_to_resource(handle, op)]


def added_number(writers: Iterable[tf.Operation]) -> int | None:
    """Returns what these operations add to an integer variable; None if they do anything else."""
    added = 0
    for op in writers:
        number = tf.get_static_value(op.inputs[1]) if op.type == "AssignAddVariableOp" else None
        if number is None or not op.inputs[1].dtype.is_integer:
            return None
        added += int(number)
    return added


def reads_any(tensor: tf.Tensor, variables: Sequence[Any]) -> bool:
    """Whether a tensor of a graph depends on one of the variables, which may be distributed ones."""
    handles = handles_of(variables)
    inside = {id(inner) for outer, inner in tensor.graph.captures if id(outer) in handles} | handles
    return any(id(one) in inside for op in ops_behind(tensor) for one in op.inputs)


def ops_behind(*tensors: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields each operation that tensors of a graph are computed by, once."""
    ahead, seen = [one.op for one in tensors], set[int]()
    while ahead:
        op = ahead.pop()
        if id(op) not in seen:
            seen.add(id(op))
            yield op
            ahead += [one.op for one in op.inputs]


def computes_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors of a graph are computed alike from the same variables and inputs.

    Functions that operations call, such as the branches of a condition, are not looked into.
    """
    ahead, seen = [(one, other)], set[tuple[int, int]]()
    while ahead:
        first, second = ahead.pop()
        if first is second or (id(first), id(second)) in seen:
            continue
        seen.add((id(first), id(second)))
        if not _are_alike(first, second):
            return False
        ahead += zip(first.op.inputs, second.op.inputs, strict=True)
    return True


def _are_alike(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors are the same output of operations that differ in nothing but their inputs."""
    first, second = ((each.op.type, each.value_index, len(each.op.inputs)) for each in (one, other))
    if first != second or one.op.type == "Placeholder":
        return False
    attributes, others = one.op.node_def.attr, other.op.node_def.attr
    return all(
        name in others and (value.HasField("func") or value == others[name])
        for name, value in attributes.items()
        if name != "_class"
    )


def bodies_of(op: tf.Operation) -> list[Any]:
    """Returns the graphs of the functions that an operation of a traced function calls."""
    names = [one.func.name for _, one in sorted(op.node_def.attr.items()) if one.HasField("func")]
    names += [one.name for attr in op.node_def.attr.values() for one in attr.list.func]
    if op.type in op_types.LOOPS:  # sorted: body, cond
        names.reverse()
    functions = [op.graph._get_function(name) for name in names]
    return [one.graph for one in functions if getattr(one, "graph", None) is not None]


def operations_in(graph: Any) -> Iterator[tf.Operation]:
    """Yields the operations of a traced function, and of those that it calls."""
    ahead, seen = [graph], set[int]()
    while ahead:
        one = ahead.pop()
        if id(one) not in seen:
            seen.add(id(one))
            for op in one.get_operations():
                yield op
                ahead += bodies_of(op) if may_call(op.type) else []


@functools.cache
def may_call(op_type: str) -> bool:
    """Whether an operation has functions among its attributes, which takes a copy of those to see."""
    definition = op_def_registry.get(op_type)
    return definition is None or any("func" in one.type for one in definition.attr)


_MOST_CAPTURED = 64  # values of a tensor that is a constant of the user's, not data


def checksum_of(graph: Any) -> int:
    """Returns a number for what a traced function computes: the same in each process and task that traces it.

    It is of operations, attributes and inputs; of the functions that they call; and of which variables, and
    which small tensors from outside, it uses. Names of functions count the traces of a process, as the tokens
    of Python functions do, so they are left out; so is the task of a device.
    """
    content = graph.as_graph_def()
    functions = {one.signature.name: one for one in content.library.function}
    names = {one.encode() for one in functions}
    numbers: dict[str, str] = {}
    checksum = hashlib.blake2b(digest_size=7)  # what an int64 and a float hold
    ahead = [content.node]

    def number_of(name: str) -> str:
        if name not in numbers:
            numbers[name] = str(len(numbers))
            ahead.append(functions[name].node_def)
        return numbers[name]

    while ahead:
        for node in ahead.pop(0):
            node.device = re.sub(r"/task:\d+", "", node.device)
            for name, attribute in sorted(node.attr.items()):  # or in any order
                called = [attribute.func] if attribute.HasField("func") else attribute.list.func
                for one in called:
                    one.name = number_of(one.name)
                if name in ("token", "_gradient_op_type") or attribute.s in names:  # of the other direction
                    attribute.Clear()
            checksum.update(node.SerializeToString(deterministic=True))
    variables = {id(one.handle): one for one in _variables_in(graph)}
    for outer, _ in graph.captures:
        checksum.update(str((outer.dtype, outer.shape)).encode())
        if (variable := variables.get(id(outer))) is not None:
            checksum.update(f"{variable.name} {variable.trainable}".encode())
        elif hasattr(outer, "numpy") and outer.dtype not in (tf.resource, tf.variant):
            values = outer.numpy()
            checksum.update(repr(values.tolist()).encode() if np.size(values) <= _MOST_CAPTURED else b"")
    return int.from_bytes(checksum.digest(), "big")


def draws_by_own_seed(op_type: str) -> bool:
    """Whether an operation draws by a seed that it was given when it was traced.

    Those of cuDNN have one for a dropout that Keras does not ask of them.
    """
    definition = op_def_registry.get(op_type)
    if definition is None or op_type.startswith("Cudnn"):
        return False
    return definition.is_stateful and any(attr.name == "seed2" for attr in definition.attr)


def has_state(op_type: str) -> bool:
    """Whether TensorFlow runs an operation for more than its outputs, or with more than its inputs."""
    definition = op_def_registry.get(op_type)
    return definition is not None and bool(definition.is_stateful)
