"""What raydist changes in tf_keras's optimizers and losses: each replica's gradient counts by its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tf_keras.src import losses
from tf_keras.src.engine import base_layer_utils, compile_utils
from tf_keras.src.layers.normalization import batch_normalization
from tf_keras.src.metrics import base_metric
from tf_keras.src.mixed_precision import loss_scale_optimizer
from tf_keras.src.optimizers import optimizer, utils as optimizer_utils
from tf_keras.src.optimizers.legacy import optimizer_v2
from tf_keras.src.utils import losses_utils

from raydist import tf_private
from raydist.training.cluster.ps_messages import joined_gradients
from raydist.training.cluster.strategy import is_central, shares_variables
from raydist.training.cluster.virtual_strategy import shared_variables
from raydist.training.keras_patches.replacement import replaces
from raydist.training.replicas import accumulation, all_reduce, gradient_probe, gradients, replica_share
from raydist.training.user_code import code_names

# Both generations of optimizers, and their wrappers for mixed precision.
_OPTIMIZERS = (
    optimizer.Optimizer,
    loss_scale_optimizer.LossScaleOptimizerV3,
    optimizer_v2.OptimizerV2,
    loss_scale_optimizer.LossScaleOptimizer,
)


_ONE = "virtual replicas have one optimizer in each worker, and not one each"


@replaces(
    optimizer._BaseOptimizer,
    "__init__ _build_learning_rate add_variable add_variable_from_reference",
    "self ...",
    because=_ONE,
)
@replaces(optimizer_v2.OptimizerV2, "add_slot add_weight", "self ...", because=_ONE)
@replaces(loss_scale_optimizer._DynamicLossScaleState, "_add_weight", "self ...", because=_ONE)
def _make_variables(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with shared_variables():
        return original(*args, **kwargs)


def build(of: Any, variables: Sequence[Any]) -> None:
    """Makes an optimizer's variables for those that it will update, unless they are there. In a scope."""
    if isinstance(of, optimizer_v2.OptimizerV2):
        of._create_all_weights(variables)
    else:
        of.build(variables)


@replaces(
    _OPTIMIZERS,
    "apply_gradients",
    "self grads_and_vars ...",
    because="the check of a model's own losses needs the gradients that its optimizers get",
)
def _recorded(original: Callable[..., Any], self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    probe, accumulated = gradient_probe.active(), replica_share.current.accumulated
    is_scaled, grads_and_vars = hasattr(self, "loss_scale"), list(grads_and_vars)
    # After an update it assigns them what their constraint makes of them.
    _make_assignable(one for _, one in grads_and_vars if getattr(one, "constraint", None) is not None)
    if not grads_and_vars or (probe is None and accumulated is None and not is_scaled):
        return original(self, grads_and_vars, *args, **kwargs)
    given, variables = zip(*grads_and_vars, strict=True)
    if probe is None and accumulated is None:
        with accumulation.summing_scaled(given, self.loss_scale):
            return original(self, grads_and_vars, *args, **kwargs)
    if probe is None and accumulated is not None:
        accumulated.add(
            given,
            lambda sums: original(self, list(zip(sums, variables, strict=True)), *args, **kwargs),
            # Their gradients come divided by it.
            loss_scale=self.loss_scale if is_scaled else None,
        )
        return self.iterations
    assert probe is not None
    is_reduced = kwargs.get("skip_gradients_aggregation", False)
    is_reduced = is_reduced or not kwargs.get("experimental_aggregate_gradients", True)
    if not is_reduced and isinstance(self, optimizer_v2.OptimizerV2):
        given, variables = zip(*self._transform_unaggregated_gradients(grads_and_vars), strict=True)
    if not is_reduced and code_names.sums_by_itself(self):
        is_reduced = True
        legacy = isinstance(self, optimizer_v2.OptimizerV2)
        aggregate = self._aggregate_gradients if legacy else self.aggregate_gradients
        with tf_private.meaning_over(tf.distribute.get_strategy().num_replicas_in_sync):
            given, variables = zip(*aggregate(zip(given, variables, strict=True)), strict=True)
    probe.record(self, given, variables, is_reduced=is_reduced)
    with tf_private.made_in_scope(probe.strategy):  # optimizers.legacy make it when it is read first
        return self.iterations


@replaces(
    batch_normalization.BatchNormalizationBase,
    "call",
    "self inputs ...",
    because="a fused operation does not show its statistics to the check of a model's own losses",
)
def _normalise(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if gradient_probe.active() is None:
        return original(self, *args, **kwargs)
    with tf_private.own_attributes([(self, "fused", False)]):
        return original(self, *args, **kwargs)


@replaces(
    batch_normalization.BatchNormalizationBase,
    "_moments",
    "self inputs ...",
    because="the check of a model's own losses needs the same statistics for a batch and its parts; "
    "gradients through statistics of all replicas weigh an uneven batch wrongly",
)
def _moments(original: Callable[..., Any], self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if gradient_probe.active() is None and getattr(self, "synchronized", False):
        return replica_share.synchronized_moments(lambda one: original(self, one, *args, **kwargs), inputs)
    return gradient_probe.statistics_of(self, lambda: original(self, inputs, *args, **kwargs))


@replaces(
    optimizer.Optimizer,
    "_process_kwargs",
    "self kwargs",
    because="it ignores the learning rate of Adam(lr=0.1), and tells only the task's log",
)
def _process_kwargs(original: Callable[..., None], self: Any, kwargs: dict[str, Any]) -> None:
    if "lr" in kwargs:
        gradients.note_ignored_rate(self, kwargs["lr"])
    original(self, kwargs)


@replaces(
    optimizer.Optimizer,
    "_compute_current_learning_rate",
    "self",
    because="the rate of a schedule cannot be assigned under CentralStorageStrategy",
)
def _compute_current_learning_rate(original: Callable[..., None], self: Any) -> None:
    if (rate := getattr(self, "_current_learning_rate", None)) is not None:
        _make_assignable([rate])
    original(self)


def _make_assignable(variables: Iterable[Any]) -> None:
    """Lets the replicas of central_storage assign the variables that they share."""
    if is_central(tf.distribute.get_strategy()):
        for variable in variables:
            tf_private.assign_of_first_replica(variable)


@replaces(
    loss_scale_optimizer,
    "strategy_supports_loss_scaling",
    "...",
    because="mixed_float16 is refused under CentralStorageStrategy, where it works",
)
def _supports_loss_scaling(original: Callable[..., Any]) -> Any:
    return shares_variables(tf.distribute.get_strategy()) or original()


@replaces(
    optimizer.Optimizer,
    "_internal_apply_gradients",
    "self grads_and_vars",
    because="under ParameterServer each gradient is a message of its own",
)
def _internal_apply_gradients(original: Callable[..., Any], self: Any, grads_and_vars: Any) -> Any:
    pairs, own = list(grads_and_vars), self._distribution_strategy
    is_outside = own is not None and not tf_private.is_default(own) and not tf.distribute.has_strategy()
    if is_outside and not all(own.extended.variable_created_in_scope(one) for _, one in pairs):
        # It goes with a model whose variables no scope has made.
        self._distribution_strategy = tf.distribute.get_strategy()
    return original(self, joined_gradients(pairs))


@replaces(
    optimizer_utils,
    "all_reduce_sum_gradients",
    "grads_and_vars",
    "a5b8dd0a1150",
    because="a padding example adds its own gradient to losses that sum over examples",
)
def _all_reduce(original: Callable[..., Any], grads_and_vars: Any) -> Any:
    pairs = [(replica_share.weighted_gradient(gradient), variable) for gradient, variable in grads_and_vars]
    given = [gradient for gradient, _ in pairs if gradient is not None]
    # A replica's part of a row is clipped like a row (optimizer.py, `_clip_gradients` before
    # `_deduplicate_sparse_grad`).
    is_ours = all_reduce.is_configured() or any(map(gradients.has_rows_of_batch, given))
    if replica_share.num_replicas() == 1 or not is_ours:
        summed = [gradient for gradient, _ in original(pairs)]
    else:
        found = iter(gradients.joined_over_replicas(given, tf.distribute.get_replica_context()))
        summed = [None if one is None else next(found) for one, _ in pairs]
    variables = [variable for _, variable in pairs]
    return list(zip(accumulation.overflowed(summed), variables, strict=True))


@replaces(
    losses_utils,
    "scale_loss_for_distribution",
    "loss_value",
    "85abae5f16dc",
    because="each local mean weighs 1/replicas, regardless of its number of examples",
)
def _scale_loss(original: Callable[..., Any], loss_value: Any) -> Any:
    # The gradient of a loss for each example, which add_loss was given, is that of a sum.
    scale = replica_share.scale_sum if loss_value.shape.rank else replica_share.scale_by_share
    return scale(loss_value)


@replaces(
    losses_utils,
    "apply_valid_mask",
    "losses sw mask reduction",
    "541c072a3c81",
    because="each replica divides by its own valid entries, and by 0 where it has none",
)
def _apply_valid_mask(original: Callable[..., Any], losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
    weights = original(losses, sw, mask, reduction)
    is_mean = reduction in (losses_utils.ReductionV2.AUTO, losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE)
    if mask is None or replica_share.is_whole() or not is_mean:
        return weights
    valid = tf.reduce_sum(tf.cast(mask, weights.dtype))
    factor = tf.math.divide_no_nan(valid, replica_share.in_proportion(valid))
    return tf.where(valid > 0, weights * factor, tf.zeros_like(weights))


@replaces(
    losses.Loss,
    "_get_reduction",
    "self",
    "2582a0c2d1c2",
    because="the default reduction is refused in a train_step, where it is right for local means",
)
def _get_reduction(original: Callable[..., Any], self: Any) -> Any:
    is_default = self.reduction in (
        losses_utils.ReductionV2.AUTO,
        losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE,
    )
    # What a layer gives to add_loss is scaled when the model sums up its losses (compile_utils.py).
    is_in_layer = base_layer_utils.call_context().in_call and replica_share.current.is_of_model
    if is_default and (replica_share.is_whole() or is_in_layer or replica_share.is_local_mean()):
        return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE
    return original(self)


@replaces(
    compile_utils.LossesContainer,
    "__call__",
    "self ...",
    because="it shows a loss of the user's that is a sum over the batch as a mean over the replicas",
)
def _losses_of_model(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    with tf_private.changed(replica_share.current, losses=self):
        return original(self, *args, **kwargs)


@replaces(
    base_metric.Mean,
    "update_state",
    "self values sample_weight",
    because="the mean of a train_step's own loss weighs all replicas alike",
)
def _update_state(original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None) -> Any:
    losses = replica_share.current.losses
    if getattr(values, "shape", None) == ():
        if losses is not None and replica_share.is_sum():  # and weighted by the replica's examples
            values = replica_share.unscale_by_share(values)
        values, sample_weight = replica_share.of_step(self, values, sample_weight)
    elif losses is not None and any(self is one for one in losses.metrics):
        # Losses with reduction="none", each of which weighs as many examples as the global batch has.
        share = replica_share.step_weight(values.dtype)
        if share is not None:
            sample_weight = tf.math.divide_no_nan(tf.cast(sample_weight, share.dtype), share)
    return original(self, values, sample_weight=sample_weight)
