"""Variables: what they consist of, and how they are read, converted and saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.distribute import values as distributed_values
from tensorflow.python.distribute.sharded_variable import ShardedVariable as ShardedVariable  # no public name
from tensorflow.python.eager import forwardprop_util, record
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

from raydist.tf_private.attributes import around, changed


def follow_synchronized(
    read: Callable[[Any, Callable[[Any], Any]], Any], assigned: Callable[[Any, Any], None]
) -> None:
    """Follows reads outside of replicas, and changes, of variables that are synchronized on read.

    TensorFlow reduces one over all replicas whenever it is read there (values.py, `_get_cross_replica`).

    Args:
      read: Called with the variable and a function of it that reduces it; returns its value.
      assigned: Called with the variable and the value that was assigned; None where it is added to, or where
        a checkpoint is read into it.
    """
    owner = distributed_values.SyncOnReadVariable

    @around(owner, "_get_cross_replica")
    def reduced(original: Any, variable: Any) -> Any:
        return read(variable, original)

    @around(distributed_values.values_util, "get_on_read_restore_ops")
    def restored(original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        assigned(variable, None)
        return original(variable, *args, **kwargs)

    @around(owner, "assign", "assign_add", "assign_sub")
    def assign(original: Any, variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(variable, value, *args, **kwargs)
        assigned(variable, value if original.__name__ == "assign" else None)
        return result


def is_synchronized_on_read(variable: object) -> bool:
    """Whether reading `variable` outside a replica is a collective, so that every worker has to read it."""
    synchronization = getattr(variable, "synchronization", None)
    return synchronization == tf.VariableSynchronization.ON_READ


def is_of_strategy(variable: Any) -> bool:
    """Whether a variable was made in the scope of a strategy that has several replicas."""
    # Those of central_storage and of parameter servers are no DistributedValues.
    return getattr(variable, "distribute_strategy", None) is not None


def assign_of_first_replica(variable: Any) -> None:
    """Lets the replicas of central_storage assign a variable that was made without an aggregation."""
    if getattr(variable, "_aggregation", None) == tf.VariableAggregation.NONE:
        variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def local_value(variable: Any) -> tf.Tensor:
    """Returns the value of a `tf.Variable` in this process, in any scope.

    Of a distributed one it is the first local copy, which is four times as fast to read as what the strategy
    chooses: the copies of one that is not synchronized on read are equal.
    """
    copies = () if is_synchronized_on_read(variable) else getattr(variable, "values", ())
    return (copies[0] if copies else variable).read_value()


def make_variables_convertible() -> None:
    """Gives distributed variables the conversions that plain variables and those of central_storage have.

    TensorFlow lacks them (distribute/values.py): `int` and `float` raise a TypeError, and NumPy fails in the
    strategy's scope. Reading one that is synchronized on read, such as a metric's, is a collective, as its
    `numpy()` is. `bool` stays true for each, because TensorFlow finds out with it whether it was given one
    (mirrored_strategy.py, `_broadcast_to`).
    """
    conversions: dict[str, Callable[..., Any]] = {
        "__int__": lambda self: int(self.numpy()),
        "__float__": lambda self: float(self.numpy()),
        "__complex__": lambda self: complex(self.numpy()),
        "__array__": lambda self, dtype=None, copy=None: np.array(self.numpy(), dtype=dtype),
    }
    for name, convert in conversions.items():
        if not hasattr(distributed_values.DistributedVariable, name):
            setattr(distributed_values.DistributedVariable, name, convert)


def distributed(variable: Any) -> Any:
    """Returns the mirrored variable that a replica's copy belongs to; any other variable itself."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    # TensorFlow hangs a weak reference on the copy or on its handle (distribute/values.py).
    for holder in (variable, variable.handle):
        container: Callable[[], Any] | None = getattr(holder, "_distributed_container", None)
        if container is not None and container() is not None:
            return container()
    return variable


def parts_of(variable: Any) -> list[Any]:
    """Returns the `tf.Variable`s that a variable of TensorFlow or Keras consists of: shards, one, or none."""
    if isinstance(variable, ShardedVariable):
        return list(variable.variables)
    if isinstance(variable, tf.Variable):
        return [variable]
    # A Keras 3 variable wraps the tf.Variable. Among tf_keras's weights are handlers of lookup tables, whose
    # vocabulary the train function makes again.
    wrapped = getattr(variable, "value", None)
    return [wrapped] if isinstance(wrapped, tf.Variable) else []


def ids_of(variables: Sequence[Any]) -> set[int]:
    """Returns what identifies variables, also those of Keras 3, among those of a traced function.

    What holds no variable has none, such as the vocabulary that tf_keras lists among a layer's weights.
    """
    plain = (one if isinstance(one, tf.Variable) else getattr(one, "value", None) for one in variables)
    return {id(distributed(one)) for one in plain if isinstance(one, tf.Variable)}


def is_among(variable: Any, others: Sequence[Any]) -> bool:
    """Whether a variable is one of the others; a strategy's wrappers are looked through."""
    return not handles_of([variable]).isdisjoint(handles_of(others))


def handles_of(variables: Sequence[Any]) -> set[int]:
    return {id(part.handle) for one in variables for part in getattr(one, "values", (one,))}


# Reads a variable in the current graph.
Read = Callable[[], tf.Tensor]


def replace_reads(read: Callable[[Any, Read], tf.Tensor]) -> None:
    """Replaces how this process reads variables in graphs: calls `read(variable, original)` instead.

    All reads of a whole variable end in the method that this replaces.
    """

    @around(resource_variable_ops.BaseResourceVariable, "_read_variable_op")
    def read_variable(original: Any, self: Any, no_copy: bool = False) -> tf.Tensor:
        if tf.executing_eagerly():
            return original(self, no_copy)
        return read(self, lambda: original(self, no_copy))


# Whether a gradient tape is active; a context in which none records.
is_recording = record.could_possibly_record
not_recording = record.stop_recording


def read_unseen(variable: Any) -> tf.Tensor:
    """Returns a variable's value in a graph without telling those who watch what is read.

    A function with a custom gradient, for example, has to know the gradients of all variables that it reads.
    """
    return gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype)


def recorded_read(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Returns `value` as what gradient tapes take for the value of `variable` (resource_variable_ops.py)."""
    resource_variable_ops.variable_accessed(variable)
    variable._variable_read = True
    with record.stop_recording():
        result = tf.identity(value)  # of its own, as a tape knows a tensor by where it came from last
    record.record_operation(
        "ReadVariableOp",
        [result],
        [variable.handle],
        backward_function=lambda gradient: [gradient],
        forward_function=lambda tangent: [tangent],
    )
    return result


def has_tangent(variable: Any, graph: Any) -> bool:
    """Whether a `tf.autodiff.ForwardAccumulator` watches a variable in a function's graph."""
    return bool(forwardprop_util.pack_tangents([graph.capture(variable.handle)]).tangents)


def assign_sum(variable: Any, value: Any, method: str = "assign") -> list[Any]:
    """Changes a variable whose copies on all replicas are summed when it is read, outside of replicas.

    The first replica's copy gets all of it, so that whole numbers, and numbers on three replicas, are exact.

    Args:
      value: Of all replicas, the same in each worker.
      method: `assign`, `assign_add` or `assign_sub`.

    Returns:
      What the method returned for each copy in this process.
    """
    value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
    has_first = getattr(variable.distribute_strategy.extended, "_id_in_cluster", 0) == 0
    changes = []
    for place, copy in enumerate(variable.values):
        with tf.device(copy.device):
            part = value if has_first and place == 0 else tf.zeros_like(value)
            changes.append(getattr(copy, method)(part))
    return changes


def own_replicas(strategy: Any, num_local: int) -> range:
    """Returns the numbers of this worker's replicas, of which each worker has as many."""
    first = getattr(strategy.extended, "_id_in_cluster", 0) * num_local
    return range(first, first + num_local)


def plain_variable(value: int, dtype: tf.DType) -> tf.Variable:
    """Returns a variable that no strategy mirrors, also in a strategy's scope."""
    return resource_variable_ops.ResourceVariable(value, dtype=dtype)


def put_checkpoints(put: Callable[[str, Callable[[str], Any]], Any]) -> None:
    """Has each `tf.train.Checkpoint` written by `put`, which takes its prefix and what writes to one."""

    @around(checkpoint.TrackableSaver, "save")
    def save(original: Any, self: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file_prefix, str) or not tf.executing_eagerly():
            return original(self, file_prefix, *args, **kwargs)
        tf.io.gfile.makedirs(os.path.dirname(file_prefix) or ".")
        put(file_prefix, lambda prefix: original(self, prefix, *args, **kwargs))
        return file_prefix


def count_saves_alone() -> None:
    """Has a `tf.train.Checkpoint` make its count of saves in each worker for itself, also in a scope.

    A variable of the strategy would get its value from the chief, so that all workers would have to save.
    """

    @around(checkpoint, "add_variable")
    def add_variable(original: Any, *args: Any, **kwargs: Any) -> Any:
        with changed(ops.get_default_graph(), _variable_creator_stack=[]):
            return original(*args, **kwargs)
