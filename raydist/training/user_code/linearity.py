"""Whether what a traced step computes of a batch is a sum over its examples, for each batch.

The gradients of a batch and of its parts are compared for one batch. A mean over the rows of a mask passes
that where the mask has no padding yet, and is something else on every other batch. In the graph it shows: it
divides by a value that is computed from all examples. This follows such values. What is done to them has to
be linear, or a replica that has a part of the examples computes something else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from raydist import op_types, tf_private

# Begins the name of an operation whose output stands for a value of the whole batch on each replica.
OF_WHOLE_BATCH = "raydist_of_whole_batch"


class _Kind(enum.IntEnum):
    """How a tensor depends on a batch: not at all, with a row for each example, or as one value of all."""

    FIXED = 0
    ROWS = 1
    WHOLE = 2


class _State(NamedTuple):
    """What is known of a tensor.

    Attributes:
      is_sized: Whether its shape depends on values, as that of `tf.boolean_mask` does.
      is_mixed: Whether something that is not linear was done to a value of all examples.
    """

    kind: _Kind = _Kind.FIXED
    is_sized: bool = False
    is_mixed: bool = False


_FIXED = _State()
_MOST_TURNS = 4


class Dependence(NamedTuple):
    """How a tensor depends on the values of a batch.

    Attributes:
      is_fixed: Whether it does not.
      is_additive: Whether it is a sum over the examples, up to factors that no example changes. They may
        depend on how many there are.
    """

    is_fixed: bool
    is_additive: bool


def dependences(
    graph: Any, sources: Sequence[tuple[tf.Tensor, bool]], targets: Sequence[tf.Tensor]
) -> list[Dependence]:
    """Returns how each target depends on a batch.

    Args:
      graph: Of the traced function.
      sources: The tensors of the batch, each with whether its rows are not examples, as of ragged ones.
    """
    states = {
        id(one): _State(_Kind.WHOLE if one.shape.is_fully_defined() else _Kind.ROWS, is_sized)
        for one, is_sized in sources
    }
    needed = {id(op) for one in targets for op in tf_private.ops_behind(one)}
    state_of = _follow([op for op in graph.get_operations() if id(op) in needed], states)
    return [Dependence(not state_of(one).kind, not state_of(one).is_mixed) for one in targets]


def _follow(operations: Sequence[tf.Operation], states: dict[int, _State]) -> Callable[[Any], _State]:
    def state_of(tensor: Any) -> _State:
        return states.get(id(tensor), _FIXED)

    for op in operations:
        given = [state_of(one) for one in op.inputs]
        is_cut = op.name.rpartition("/")[2].startswith(OF_WHOLE_BATCH)
        if is_cut or not any(one.kind or one.is_mixed for one in given):
            continue
        for tensor, state in zip(op.outputs, _results(op, given), strict=True):
            states[id(tensor)] = state
    return state_of


def _results(op: tf.Operation, given: Sequence[_State]) -> list[_State]:
    if op.type in op_types.SHAPES or op.type in op_types.LIKE:
        # A shape says how many examples there are, and nothing of them.
        is_sized = any(one.is_sized for one in given)
        kind = _Kind.FIXED if not is_sized else _Kind.WHOLE if op.type in op_types.SHAPES else _Kind.ROWS
        return [_State(kind, is_sized and op.type in op_types.LIKE) for _ in op.outputs]
    inside = _results_inside(op, given)
    if inside is not None:
        return inside
    sizes = op_types.SIZES_OF.get(op.type, ())
    values = [one for index, one in enumerate(given) if index not in sizes]
    is_sized = op.type in op_types.SIZED or any(one.is_sized for one in given)
    is_sized = is_sized or any(one.kind for index, one in enumerate(given) if index in sizes)
    is_mixed = any(one.is_mixed for one in given)
    found = []
    for output in op.outputs:
        kind = _kind_of(output, is_sized=is_sized)
        if op.type in ("Sum", "Reshape", "UnsortedSegmentSum") and all(
            one.kind is not _Kind.ROWS for one in values
        ):
            kind = _Kind.WHOLE  # also where TensorFlow does not know its shape
        is_number = output.dtype.is_floating or output.dtype.is_complex
        mixes = is_number and not _is_linear(op, values, kind)
        mixes = mixes or _orders_rows(op, values) or _compares_with_whole(op, given)
        found.append(_State(kind, is_sized and kind is _Kind.ROWS, is_mixed or mixes))
    return found


def _kind_of(tensor: Any, *, is_sized: bool = False) -> _Kind:
    is_opaque = tensor.dtype in (tf.variant, tf.resource)
    is_whole = tensor.shape.is_fully_defined() and not is_opaque
    return _Kind.WHOLE if is_whole else _Kind.ROWS


def _is_linear(op: tf.Operation, values: Sequence[_State], kind: _Kind) -> bool:
    """Whether an operation is linear in its inputs that are values of all examples."""
    is_whole = [one.kind is _Kind.WHOLE for one in values]
    if op.type == "Mean" and kind is _Kind.WHOLE and any(one.is_sized for one in values):
        return False  # it divides by a number of rows that depends on values
    if not any(is_whole):
        return True
    if kind is _Kind.ROWS:  # each example gets what comes from all of them
        return False
    has_rows = any(one.kind is _Kind.ROWS for one in values)
    if op.type in ("AddN", "Cast"):  # all that is added has the shape of the sum
        return True
    if op.type in ("Select", "SelectV2") and is_whole[0]:
        return False
    if op.type in op_types.LINEAR:
        return not has_rows
    num_dependent = sum(one.kind is not _Kind.FIXED for one in values)
    if op.type in op_types.QUOTIENTS:
        return num_dependent == 1 and is_whole[0]
    is_gradient = "Grad" in op.type or "Backprop" in op.type
    return num_dependent == 1 and (op.type in op_types.BILINEAR or is_gradient)


def _orders_rows(op: tf.Operation, values: Sequence[_State]) -> bool:
    """Whether it chooses examples by comparing them with one another, as for the hardest half of a batch."""
    return op.type in op_types.ORDERS and values[0].kind is _Kind.ROWS and op.inputs[0].shape.rank == 1


def _compares_with_whole(op: tf.Operation, given: Sequence[_State]) -> bool:
    """Whether it compares each example with a real number of all of them, such as the mean of the losses."""
    if op.type not in op_types.COMPARISONS or all(one.kind is not _Kind.ROWS for one in given):
        return False
    return any(
        one.kind is _Kind.WHOLE and tensor.dtype.is_floating
        for one, tensor in zip(given, op.inputs, strict=True)
    )


def _results_inside(op: tf.Operation, given: Sequence[_State]) -> list[_State] | None:
    """Returns the states of the outputs of a condition, a loop or a call; None for other operations."""
    if op.type not in op_types.CONDITIONS | op_types.LOOPS | op_types.CALLS:
        return None
    bodies = tf_private.bodies_of(op)
    decides = given[:1] if op.type in op_types.CONDITIONS else []
    states = list(given[len(decides) :])
    if op.type in op_types.LOOPS:
        bodies = bodies[-1:]  # behind the condition
        for _ in range(_MOST_TURNS):
            states = [_joined(pair) for pair in zip(states, _inside(bodies, states, op.outputs), strict=True)]
        results = states
    else:
        results = _inside(bodies, states, op.outputs)
    if any(one.kind is not _Kind.FIXED for one in decides):  # each replica decides by its own part
        results = [one._replace(is_mixed=True, kind=max(one.kind, _Kind.ROWS)) for one in results]
    return results


def _inside(bodies: Sequence[Any], given: Sequence[_State], outputs: Sequence[Any]) -> list[_State]:
    found = []
    for body in bodies:
        states = {id(one): state for one, state in zip(body.inputs, given, strict=False)}
        state_of = _follow(body.get_operations(), states)
        found.append([state_of(one) for one in body.outputs])
    if not found:
        is_mixed = any(one.is_mixed for one in given)
        return [_State(_kind_of(one), False, is_mixed) for one in outputs]
    return [_joined(of_bodies) for of_bodies in zip(*found, strict=True)]


def _joined(states: Collection[_State]) -> _State:
    return _State(
        max(one.kind for one in states),
        any(one.is_sized for one in states),
        any(one.is_mixed for one in states),
    )
