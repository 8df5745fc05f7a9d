"""The scope of a strategy for a program that knows nothing of it: what it calls means what it does without.

TensorFlow allows some of it in replicas alone, such as an update of a metric.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, values as distributed_values, values_util
from tensorflow.python.eager import backprop
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import load

from raydist.tf_private.attributes import changed
from raydist.tf_private.variables import assign_sum


@contextlib.contextmanager
def scope_of_program(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Enters a strategy's scope for a program in this thread that knows nothing of it.

    The scope is a part of the thread's default graph, which `clear_session` of either Keras replaces: here it
    stays, as what runs eagerly puts nothing else there.
    """
    with (
        changed(ops._default_graph_stack, reset=lambda: None),  # this thread's
        changed(load._WrapperFunction, _call_flat=_reading_own(load._WrapperFunction._call_flat)),
        changed(distributed_values.values_util, **_OUTSIDE_OF_REPLICAS),
        changed(backprop, _handle_or_self=_source_of_own(backprop._handle_or_self)),
        strategy.scope(),
        tf.variable_creator_scope(_with_text_outside),
    ):
        yield


def _with_text_outside(create: Callable[..., Any], **options: Any) -> Any:
    """Makes a variable of text in each worker for itself: collectives cannot send its first value."""
    value = options.get("initial_value")
    kind = options.get("dtype") or getattr(value, "dtype", None)
    is_text = isinstance(value, str | bytes) or (kind is not None and _is_text(kind))
    if not is_text:
        return create(**options)
    with changed(ops.get_default_graph(), _variable_creator_stack=[]):
        return tf.Variable(value, dtype=options.get("dtype"), name=options.get("name"), trainable=False)


def _is_text(kind: Any) -> bool:
    try:
        return bool(tf.as_dtype(kind) == tf.string)
    except TypeError:  # none of TensorFlow's, of which it will tell
        return False


def _reading_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """Has functions of a SavedModel read this process's copies of variables outside of replicas.

    TensorFlow has placeholders for them there (load.py, `_WrapperFunction`).
    """

    def call_with_own(self: Any, args: Any, captured_inputs: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            captured_inputs = [
                one._primary.handle if distribute_utils.is_distributed_variable(one) else one
                for one in captured_inputs
            ]
        return call(self, args, captured_inputs)

    return call_with_own


def _source_of_own(source_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Has gradients with respect to variables taken of this process's copies outside of replicas."""

    def source(one: Any) -> Any:
        is_own = distribute_utils.is_distributed_variable(one)
        variable: Any = one if is_own else getattr(one, "value", None)  # of a variable of Keras 3
        if distribute_utils.is_distributed_variable(variable) and tf.distribute.in_cross_replica_context():
            return variable._get_on_device_or_primary().handle
        return source_of(one)

    return source


def _summed(method: str) -> Callable[..., Any]:
    """Returns what assigns a variable outside of replicas whose copies are summed when it is read.

    TensorFlow refuses to add to one, and divides what is assigned, which loses parts of whole numbers.
    """
    name = f"on_read_{method}_cross_replica"
    original = getattr(values_util, name)

    def assign(variable: Any, value: Any, read_value: bool = True) -> Any:
        if variable.aggregation != tf.VariableAggregation.SUM:
            return original(variable, value, read_value)
        assign_sum(variable, value, method)
        return variable

    return assign


_restore = values_util.get_on_read_restore_ops


def _restored(variable: Any, tensor: Any, aggregation: Any) -> Any:
    if aggregation != tf.VariableAggregation.SUM:
        return _restore(variable, tensor, aggregation)
    return tf.group(*assign_sum(variable, tensor, "assign"))


_OUTSIDE_OF_REPLICAS = {
    **{f"on_read_{name}_cross_replica": _summed(name) for name in ("assign", "assign_add", "assign_sub")},
    "get_on_read_restore_ops": _restored,
}
