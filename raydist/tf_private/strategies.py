"""What a strategy is made of, and where in it something is called: in a scope, a replica, an update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    distribute_lib,
    distribute_utils,
    mirrored_run,
    values as distributed_values,
)
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from raydist.tf_private.attributes import around, changed
from raydist.tf_private.functions import inlined_functions

# Of what a strategy of raydist's own is made of (cluster/virtual_strategy.py).
CollectiveExtended = collective_all_reduce_strategy.CollectiveAllReduceExtended
MirroredVariable = distributed_values.MirroredVariable
regroup = distribute_utils.regroup
select_replica = distribute_utils.select_replica
update_regroup = distribute_utils.update_regroup
update_context = distribute_lib.UpdateContext


def create_mirrored_variable(
    strategy: tf.distribute.Strategy,
    create: Callable[..., list[Any]],
    *,
    mirrored_class: type,
    **options: Any,
) -> Any:
    """Returns a distributed variable of the copies that `create` returns, of a class of raydist's own."""
    classes = {
        key: mirrored_class if one is MirroredVariable else one
        for key, one in distribute_utils.VARIABLE_CLASS_MAPPING.items()
    }
    return distribute_utils.create_mirrored_variable(
        strategy, create, classes, distribute_utils.VARIABLE_POLICY_MAPPING, **options
    )


def is_in_replica() -> bool:
    """Whether this is called by a strategy's `run`, and neither in its scope alone nor outside of it."""
    is_outside = is_default(tf.distribute.get_strategy())
    return not is_outside and tf.distribute.get_replica_context() is not None


def is_in_update() -> bool:
    """Whether this is called by `StrategyExtended.update`."""
    return distribute_lib.get_update_replica_id() is not None


def updated_device() -> str:
    """Returns the device of the variable that ParameterServerStrategy updates (`_update`)."""
    device: str = distribute_lib.get_update_replica_id()
    return device


_prepares: dict[str, Callable[[], Callable[[], None]]] = {}


def prepare_replica_threads(prepare: Callable[[], Callable[[], None]]) -> None:
    """Has each `strategy.run` on several devices of this process call `prepare`, one function of each module.

    What that returns is called first in the thread of each replica. TensorFlow makes new threads each time
    (mirrored_run.py, `_call_for_each_replica`), and hands over its own thread-local state alone.
    """
    _prepares[prepare.__module__] = prepare

    @around(mirrored_run, "_get_thread_local_configuration_callable")
    def callables(original: Callable[[], set[Any]]) -> set[Callable[[], None]]:
        return {*original(), *(one() for one in _prepares.values())}


def spec_of_replica(spec: Any) -> Any:
    """Returns the structure of one replica's batch, of that of a dataset or a distributed dataset."""
    return tf.nest.map_structure(lambda one: getattr(one, "_value_specs", [one])[0], spec)


def default_strategy() -> tf.distribute.Strategy:
    """Returns the strategy outside of every scope."""
    return distribute_lib._get_default_strategy()


def is_default(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is the strategy outside of every scope, which has no devices to distribute to."""
    return strategy is distribute_lib._get_default_strategy()


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Leaves every strategy's scope, so that variables are this process's alone."""
    with changed(ops.get_default_graph(), _variable_creator_stack=[]):
        distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
        try:
            yield
        finally:
            distribute_lib._pop_per_thread_mode()


def _assign_on_one_copy(method: str) -> Callable[..., Any]:
    def assign(variable: Any, value: Any, read_value: bool = True) -> Any:
        return getattr(variable._get_replica(0), method)(value, read_value=read_value)

    return assign


_ON_ONE_COPY = {
    f"on_read_{method}_cross_replica": _assign_on_one_copy(method)
    for method in ("assign", "assign_add", "assign_sub")
}
# The last part of the names of nodes, inside of `as_one_of`, whose values all replicas have.
REDUCED = "reduced_over_replicas"


@contextlib.contextmanager
def as_one_of(
    num_replicas: int,
    *,
    on_question: Callable[[], None] = lambda: None,
    on_reduction: Callable[[bool], None] = lambda is_mean: None,
) -> Iterator[None]:
    """Leaves the strategy's scope, and lets every strategy say that it has that many replicas.

    For tracing a step as if it ran on one device, or on one replica of several, without any collective:
    the replica context is that of the default strategy, whose reductions return what they are given.

    Args:
      on_question: Called when the number of replicas is asked for.
      on_reduction: Called when something is reduced over replicas, with whether to the mean.
    """
    all_reduce = distribute_lib.ReplicaContext.all_reduce

    def answer(self: Any) -> int:
        on_question()
        return num_replicas

    def noted_all_reduce(self: Any, reduce_op: Any, *args: Any, **kwargs: Any) -> Any:
        on_reduction(_is_mean(reduce_op))
        reduced = all_reduce(self, reduce_op, *args, **kwargs)
        return tf.nest.map_structure(
            lambda one: tf.identity(one, name=REDUCED) if isinstance(one, tf.Tensor) else one, reduced
        )

    with (
        changed(distribute_lib.StrategyBase, num_replicas_in_sync=property(answer)),
        changed(distribute_lib.ReplicaContext, all_reduce=noted_all_reduce),
        # Reading one enters the scope of its own strategy, where it is reduced over the workers.
        changed(
            distributed_values.SyncOnReadVariable,
            _get_cross_replica=lambda self: self._get_replica(0).read_value(),
        ),
        # Outside of a replica TensorFlow refuses to add to one whose copies are summed.
        changed(distributed_values.values_util, **_ON_ONE_COPY),
        inlined_functions(),
    ):
        distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
        try:
            yield
        finally:
            distribute_lib._pop_per_thread_mode()


@contextlib.contextmanager
def meaning_over(num_replicas: int) -> Iterator[None]:
    """Inside of `as_one_of`, lets a mean over replicas return this replica's part of it, as a sum does."""
    all_reduce = distribute_lib.ReplicaContext.all_reduce

    def part(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        parts = all_reduce(self, reduce_op, value, options)
        is_mean = _is_mean(reduce_op)
        return tf.nest.map_structure(lambda one: one / num_replicas, parts) if is_mean else parts

    with changed(distribute_lib.ReplicaContext, all_reduce=part):
        yield


def _is_mean(reduce_op: Any) -> bool:
    return str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"


@contextlib.contextmanager
def made_in_scope(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes variables eagerly in a strategy's scope, also inside of `as_one_of` and of what is being traced.

    `tf.init_scope` alone keeps the graph being traced, and the scopes entered there: `as_one_of` has left the
    strategy's, and in a scope entered twice each copy of a variable is distributed again, which fails.
    """
    with tf.init_scope(), tf.Graph().as_default(), context.eager_mode(), strategy.scope():
        yield
