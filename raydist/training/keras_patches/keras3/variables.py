"""How Keras 3's variables are made and assigned under strategies, also BatchNormalization's statistics."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import variables as common_variables
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.layers import BatchNormalization

from raydist.tf_private import assign_sum, is_in_replica, is_synchronized_on_read
from raydist.training.cluster import kept_totals
from raydist.training.cluster.collectives import is_alone
from raydist.training.cluster.equal_workers import statistics_of
from raydist.training.cluster.strategy import (
    is_central,
    is_distributed,
    is_parameter_server,
    scope_to_build,
)
from raydist.training.keras_patches.replacement import replaces
from raydist.training.replicas import gradient_probe, replica_share
from raydist.training.replicas.model_states import state_of
from raydist.training.stepping.hooks import Hooks

# 3.16 has it in another module.
_BackendVariable: Any = next(one for one in backend.Variable.__mro__ if "_direct_assign" in vars(one))
_ATOMIC = "assign(self + x) loses what other workers add in between"


@replaces(
    _BackendVariable,
    "_initialize",
    "self value",
    because="CentralStorageStrategy needs an aggregation for layers' state; what a traced "
    "step makes cannot be lifted out of it on several replicas (You must feed a value for …)",
)
def initialize(original: Callable[..., None], self: Any, value: Any) -> None:
    probe = gradient_probe.active()
    # Layers that are built by the first call of a step, which the check makes outside of the strategy.
    with contextlib.nullcontext() if probe is None else probe.strategy.scope():
        _initialize_in_scope(original, self, value)


def _initialize_in_scope(original: Callable[..., None], self: Any, value: Any) -> None:
    strategy = tf.distribute.get_strategy()
    # Replicas assign one by one what they share: state of layers, and what some optimizers (Nadam, Muon)
    # assign outside of their update step. It says trainable, and replicas assign the same.
    if is_central(strategy) and self._aggregation == "none":
        self._aggregation = "mean" if self._dtype.startswith(("float", "bfloat")) else "only_first_replica"
    if tf.executing_eagerly() or not is_distributed(strategy) or not _is_made_outside(value):
        original(self, value)
        return
    if tf.is_tensor(value):
        value = tf.get_static_value(value)
    # As tf_keras: in a function TensorFlow lifts what gives the first value out of it, which it cannot
    # for the second replica's variable, whose value is read from that of the first.
    with tf.init_scope():
        original(self, value)


def _is_made_outside(value: Any) -> bool:
    """Whether a first value does not depend on what the function computes that is being traced."""
    return not tf.is_tensor(value) or tf.get_static_value(value) is not None


@replaces(common_variables.Variable, "assign_add", "self value", "02093eccc2e3", because=_ATOMIC)
@replaces(common_variables.Variable, "assign_sub", "self value", "d5f310723e8b", because=_ATOMIC)
def assign_atomically(original: Callable[..., Any], self: Any, value: Any) -> Any:
    if in_stateless_scope() or not is_parameter_server(tf.distribute.get_strategy()):
        return original(self, value)
    # A number is made where the variable is, or each step would send it.
    with contextlib.nullcontext() if tf.is_tensor(value) else tf.device(self._value.device):
        value = tf.cast(value, self._value.dtype)
    getattr(self._value, original.__name__)(value)
    return self


@replaces(
    _BackendVariable,
    "_direct_assign",
    "self value",
    "170647e9816d",
    because="metrics assign(self + x), and CentralStorageStrategy sums it with self in each",
)
def direct_assign(original: Callable[..., None], self: Any, value: Any) -> None:
    is_sum = self._aggregation == "sum"
    if is_sum and tf.executing_eagerly() and not is_in_replica():
        _assign_parts(self._value, value)
        return
    is_sum = is_sum and tf.distribute.get_replica_context() is not None
    if not is_sum or not is_central(tf.distribute.get_strategy()):
        original(self, value)
        return
    added = tf.cast(value, self._value.dtype) - self._value
    share = replica_share.current.share
    self._value.assign_add(added if share is None else tf.where(share > 0, added, tf.zeros_like(added)))


def _assign_parts(variable: Any, value: Any) -> None:
    """Assigns a sum to one replica and zero to the others."""
    if not (isinstance(variable, tf.distribute.DistributedValues) and is_synchronized_on_read(variable)):
        variable.assign(value)
        return
    assign_sum(variable, value)
    kept_totals.assigned(variable, value)


@replaces(
    common_variables.Variable,
    "__repr__",
    "self",
    because="it reads a metric's variable over all workers, and waits where one of them prints it",
)
def described(original: Callable[..., str], self: Any) -> str:
    value: Any = getattr(self, "_value", None)
    is_summed = isinstance(value, tf.distribute.DistributedValues) and is_synchronized_on_read(value)
    if is_summed and not is_alone(value.distribute_strategy):
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}>"
    return original(self)


def equalize_statistics(model: Any) -> None:
    """Replaces moving statistics by their mean over replicas. Every worker calls it at the same point."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or is_central(strategy):
        return
    state = state_of(model)
    if state.equalize is None:
        state.equalize = _make_equalizer(strategy, statistics_of(model))
    with kept_totals.tracing():
        state.equalize()


def _make_equalizer(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Callable[[], None]:
    if not variables:
        return lambda: None

    @tf.autograph.experimental.do_not_convert
    def average() -> None:
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.identity(variable) for variable in variables]
        )
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    return tf.function(lambda: strategy.run(average), autograph=False)


class EqualStatistics(Hooks):
    """Makes moving statistics equal before other callbacks (which may save the model) see the epoch's end."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        equalize_statistics(self.model)


@replaces(
    keras.layers.Layer,
    "_open_name_scope",
    "self",
    because="a model that is built outside of its strategy's scope gets variables of no replica",
)
@contextlib.contextmanager
def open_name_scope(original: Callable[..., Any], self: Any) -> Iterator[None]:
    with scope_to_build(self, getattr(self, "_distribute_strategy", None)), original(self):
        yield


def synchronize_batchnorm() -> None:
    """Makes `synchronized=True` the default. Keras reads the signature, so a wrapper would not do."""
    init = BatchNormalization.__init__
    defaults = {
        one.name: one.default
        for one in inspect.signature(init).parameters.values()
        if one.default is not one.empty
    }
    init.__defaults__ = tuple((defaults | {"synchronized": True}).values())
