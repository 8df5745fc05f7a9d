"""How Keras 3's variables are made and assigned under strategies that it does not know."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from raydist.training.cluster.collectives import is_alone
from raydist.training.cluster.kinds import is_central, is_distributed, is_parameter_server
from raydist.training.replicas import gradient_probe, replica_share
from raydist.training.tf_private import is_in_replica, is_synchronized_on_read


def make_initialize(original: Callable[..., None]) -> Callable[..., None]:
    def _initialize(self: Any, value: Any) -> None:
        probe = gradient_probe.active()
        if probe is not None:
            # Layers that are built by the first call of a step, which the check makes outside of the
            # strategy.
            with probe.strategy.scope():
                initialize(self, value)
        else:
            initialize(self, value)

    def initialize(self: Any, value: Any) -> None:
        strategy = tf.distribute.get_strategy()
        # Replicas assign one by one what they share: state of layers, and what some optimizers (Nadam, Muon)
        # assign outside of their update step. It says trainable, and replicas assign the same.
        if is_central(strategy) and self._aggregation == "none":
            self._aggregation = (
                "mean" if self._dtype.startswith(("float", "bfloat")) else "only_first_replica"
            )
        if tf.executing_eagerly() or not is_distributed(strategy) or not _is_made_outside(value):
            original(self, value)
            return
        if tf.is_tensor(value):
            value = tf.get_static_value(value)
        # As tf_keras: in a function TensorFlow lifts what gives the first value out of it, which it cannot
        # for the second replica's variable, whose value is read from that of the first.
        with tf.init_scope():
            original(self, value)

    return _initialize


def _is_made_outside(value: Any) -> bool:
    """Whether a first value does not depend on what the function computes that is being traced."""
    return not tf.is_tensor(value) or tf.get_static_value(value) is not None


def make_atomic(original: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def assign(self: Any, value: Any) -> Any:
        if in_stateless_scope() or not is_parameter_server(tf.distribute.get_strategy()):
            return original(self, value)
        # A number is made where the variable is, or each step would send it.
        with contextlib.nullcontext() if tf.is_tensor(value) else tf.device(self._value.device):
            value = tf.cast(value, self._value.dtype)
        getattr(self._value, name)(value)
        return self

    return assign


def make_direct_assign(original: Callable[..., None]) -> Callable[..., None]:
    def _direct_assign(self: Any, value: Any) -> None:
        is_sum = self._aggregation == "sum"
        if is_sum and tf.executing_eagerly() and not is_in_replica():
            _assign_parts(self._value, value)
            return
        is_sum = is_sum and tf.distribute.get_replica_context() is not None
        if not is_sum or not is_central(tf.distribute.get_strategy()):
            original(self, value)
            return
        added = tf.cast(value, self._value.dtype) - self._value
        share = replica_share.current_share()
        self._value.assign_add(added if share is None else tf.where(share > 0, added, tf.zeros_like(added)))

    return _direct_assign


def _assign_parts(variable: Any, value: Any) -> None:
    """Assigns each replica its part of a sum, as TensorFlow does by a function for each device."""
    if not (isinstance(variable, tf.distribute.DistributedValues) and is_synchronized_on_read(variable)):
        variable.assign(value)
        return
    num_replicas = variable.distribute_strategy.num_replicas_in_sync
    part = tf.cast(tf.convert_to_tensor(value) / num_replicas, variable.dtype)
    for copy in variable.values:
        copy.assign(part)


def make_repr(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def __repr__(self: Any) -> str:
        value: Any = getattr(self, "_value", None)
        is_summed = isinstance(value, tf.distribute.DistributedValues) and is_synchronized_on_read(value)
        if is_summed and not is_alone(value.distribute_strategy):
            return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}>"
        return original(self)

    return __repr__
