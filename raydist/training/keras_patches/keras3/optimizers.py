"""What raydist changes in Keras 3's optimizers: they see gradients that are summed over replicas."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.optimizers import base_optimizer, loss_scale_optimizer

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster.ps_messages import joined_gradients
from raydist.training.cluster.strategy import shares_variables
from raydist.training.cluster.virtual_strategy import shared_variables
from raydist.training.keras_patches.replacement import replaces
from raydist.training.replicas import accumulation, gradient_probe, gradients, replica_share
from raydist.training.user_code import bytecode

# Optimizers that a LossScaleOptimizer wraps: it has summed the gradients that they get.
_inner: weakref.WeakSet[Any] = weakref.WeakSet()


@replaces(
    base_optimizer.BaseOptimizer,
    "__init__ add_variable",
    "self ...",
    because="virtual replicas have one optimizer in each worker, and not one each",
)
def _make_variables(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with shared_variables():
        return original(*args, **kwargs)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes an optimizer's variables for those that it will update, unless they are there. In a scope."""
    if not optimizer.built:
        optimizer.build(list(variables))
        optimizer.built = True


@replaces(
    (base_optimizer.BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer),
    "apply",
    "self grads trainable_variables",
    because="the check of a model's own losses needs the gradients that its optimizers get",
)
def _recorded(original: Callable[..., None], self: Any, grads: Any, trainable_variables: Any = None) -> None:
    probe, accumulated = gradient_probe.active(), replica_share.current.accumulated
    if probe is None and accumulated is not None:
        accumulated.add(grads, lambda sums: original(self, sums, trainable_variables))
        return
    if probe is None:
        if replica_share.num_replicas() == 1 and trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            _build_outside(self, trainable_variables)
        original(self, grads, trainable_variables)
        return
    variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
    with probe.strategy.scope():
        _build_outside(self, variables)
    probe.record(self, grads, variables)


def assigns_when_built(optimizer: Any) -> bool:
    """Whether an optimizer's `build` assigns values, judging by its code."""
    methods = [vars(kind)["build"] for kind in type(optimizer).__mro__ if "build" in vars(kind)]
    return any("assign" in name for one in methods for name in bytecode.names_in(inspect.unwrap(one)))


def _build_outside(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer outside of the function that is being traced, if its `build` assigns values.

    In the function they would be assigned again in each step. Variables that the function itself has made
    have no values yet. Outside of every scope, an optimizer of a scope is built too, in that scope: Keras
    requires it.
    """
    if optimizer.built:
        return
    held = [one.value if isinstance(one, keras.Variable) else one for one in variables]
    own = optimizer._distribution_strategy
    is_outside = not tf_private.is_default(own) and not tf.distribute.has_strategy()
    if is_outside and not all(own.extended.variable_created_in_scope(one) for one in held):
        # Its variables go with those of the model, which no scope has made.
        optimizer._distribution_strategy = tf.distribute.get_strategy()
        is_outside = False
    if is_outside or (not tf.executing_eagerly() and assigns_when_built(optimizer)):
        with tf.init_scope(), own.scope() if is_outside else nullcontext():
            if all(bool(one.is_initialized()) for one in held):
                build(optimizer, variables)


def take_into_scope(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Makes the variables of an optimizer anew in a strategy's scope, if it was made outside of all.

    Keras 3 makes its count of steps and its rate with it, and its first step fails in the strategy ("Mixing
    different tf.distribute.Strategy objects"). tf_keras makes them in the first step.

    Raises:
      UnsupportedError: It has variables for a model already, or cannot be made from its configuration.
    """
    is_optimizer = isinstance(optimizer, base_optimizer.BaseOptimizer)
    if not is_optimizer or not tf_private.is_default(optimizer._distribution_strategy):
        return
    cause = f"optimizer {optimizer.name} was made outside of the strategy's scope, and"
    remedy = "make it inside of `with ctx.strategy.scope():`"
    if optimizer.built:
        raise UnsupportedError(f"{cause} has variables for a model already; {remedy}")
    try:
        with strategy.scope():
            another = type(optimizer).from_config(optimizer.get_config())
    except Exception as error:  # of a class of the user's
        raise UnsupportedError(
            f"{cause} its get_config() does not make another one: {error}; {remedy}"
        ) from error
    count = int(optimizer.iterations)
    vars(optimizer).update(vars(another))
    optimizer.iterations.assign(count)


@replaces(
    base_optimizer.BaseOptimizer,
    "_backend_apply_gradients",
    "self grads trainable_variables",
    *("48d6e24d5803", "4de6fa4f3a26"),  # from 3.16 on
    because="gradients are clipped, and sparse rows squared, before they are summed",
)
def _apply_gradients(
    original: Callable[..., None], self: Any, grads: list[Any], trainable_variables: list[Any]
) -> None:
    if self not in _inner and not tf_private.is_default(tf.distribute.get_strategy()):
        gradients.note_unseen_lookups(self, grads)
        grads = gradients.summed_over_replicas(grads)
    original(self, grads, trainable_variables)


@replaces(
    tf_optimizer.TFOptimizer,
    "_all_reduce_sum_gradients",
    "self grads_and_vars",
    "953512efa56c",
    "dd8896fa68d7",
    because="they are summed already",
)
def _take_summed(original: Callable[..., Any], self: Any, grads_and_vars: Any) -> Any:
    return joined_gradients(grads_and_vars)


@replaces(
    loss_scale_optimizer.LossScaleOptimizer,
    "_tf_apply",
    "self grads trainable_variables",
    *("e702c4db1a06", "02cc8232b14c"),  # from 3.16 on
    because="each replica decides from its own gradients whether to skip a step: a hang",
)
def _loss_scale_apply(
    original: Callable[..., None], self: Any, grads: list[Any], trainable_variables: Any = None
) -> None:
    _inner.add(self.inner_optimizer)
    if not tf.distribute.in_cross_replica_context():
        halves = accumulation.halves_of(grads)
        gradients.note_unseen_lookups(self, grads)
        grads = gradients.overflowed_halves(gradients.summed_over_replicas(grads), halves)
        if shares_variables(tf.distribute.get_strategy()):
            tf.distribute.get_replica_context().merge_call(
                _apply_to_shared, args=(self, grads, trainable_variables)
            )
            return
    original(self, grads, trainable_variables)


def _apply_to_shared(strategy: Any, optimizer: Any, grads: list[Any], trainable_variables: Any) -> None:
    """Does what `LossScaleOptimizer._tf_apply` does, where replicas share its variables.

    Keras counts finite steps in each replica, under a condition, and no replica can assign there to a
    variable that it shares.
    """
    finite = strategy.extended.call_for_each_replica(optimizer.check_finite, args=(grads,))

    def apply_in_replica(grads: list[Any]) -> None:
        variables = trainable_variables or optimizer._trainable_variables
        scale = tf.convert_to_tensor(optimizer.dynamic_scale)
        unscaled = [
            one
            if one is None or optimizer._overwrite_variable_with_gradient(variable)
            else ops.divide(one, scale)  # `/` would sum the rows of a sparse one
            for one, variable in zip(grads, variables, strict=True)
        ]
        optimizer.inner_optimizer.apply(unscaled, trainable_variables=trainable_variables)

    def count_up() -> None:
        optimizer.step_counter.assign_add(1)

    def scale_up() -> None:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)

    def apply_finite() -> None:
        strategy.extended.call_for_each_replica(apply_in_replica, args=(grads,))
        is_due = tf.equal(optimizer.step_counter, optimizer.dynamic_growth_steps - 1)
        ops.cond(is_due, scale_up, count_up)

    # Each replica has found the same, as the gradients are summed.
    is_finite = strategy.experimental_local_results(finite)[0]
    ops.cond(is_finite, apply_finite, optimizer._stateful_handle_non_finite_grads)
