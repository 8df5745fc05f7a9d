"""What raydist changes in tf_keras's optimizers and losses: each replica's gradient counts by its share."""

from __future__ import annotations

import threading
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

from raydist.training import tf_private
from raydist.training.cluster.ps_messages import joined_gradients
from raydist.training.cluster.strategy import is_central, shares_variables
from raydist.training.cluster.virtual_strategy import shared_variables
from raydist.training.keras_patches.replacement import Replacement, around
from raydist.training.replicas import (
    accumulation,
    all_reduce,
    code_names,
    gradient_probe,
    gradients,
    replica_share,
)

# Both generations of optimizers, and their wrappers for mixed precision.
_OPTIMIZERS = (
    optimizer.Optimizer,
    loss_scale_optimizer.LossScaleOptimizerV3,
    optimizer_v2.OptimizerV2,
    loss_scale_optimizer.LossScaleOptimizer,
)


# What makes variables: slots, counters, the learning rate, the scale of a loss.
_MAKERS = (
    *(
        (optimizer._BaseOptimizer, name)
        for name in ("__init__", "build", "add_variable", "_build_learning_rate")
    ),
    *((owner, "add_variable_from_reference") for owner in (optimizer._BaseOptimizer, optimizer.Optimizer)),
    *((optimizer_v2.OptimizerV2, name) for name in ("add_slot", "add_weight")),
    (loss_scale_optimizer._DynamicLossScaleState, "_add_weight"),
)


def replacements() -> tuple[Replacement, ...]:
    return (
        *(
            Replacement(
                owner=owner,
                name=name,
                parameters="self ...",
                make=shared_variables(),
                reason="virtual replicas have one optimizer in each worker, and not one each",
            )
            for owner, name in _MAKERS
        ),
        *(
            Replacement(
                owner=owner,
                name="apply_gradients",
                parameters="self grads_and_vars ...",
                make=around(_recorded),
                reason="the check of a model's own losses needs the gradients that its optimizers get",
            )
            for owner in _OPTIMIZERS
        ),
        Replacement(
            owner=optimizer.Optimizer,
            name="_process_kwargs",
            parameters="self kwargs",
            make=around(_process_kwargs),
            reason="it ignores the learning rate of Adam(lr=0.1), and tells only the task's log",
        ),
        Replacement(
            owner=optimizer.Optimizer,
            name="_compute_current_learning_rate",
            parameters="self",
            make=around(_compute_current_learning_rate),
            reason="the rate of a schedule cannot be assigned under CentralStorageStrategy",
        ),
        Replacement(
            owner=optimizer_utils,
            name="all_reduce_sum_gradients",
            parameters="grads_and_vars",
            fingerprints=("a5b8dd0a1150",),
            make=around(_all_reduce),
            reason="a padding example adds its own gradient to losses that sum over examples",
        ),
        Replacement(
            owner=optimizer.Optimizer,
            name="_internal_apply_gradients",
            parameters="self grads_and_vars",
            make=around(_internal_apply_gradients),
            reason="under ParameterServer each gradient is a message of its own",
        ),
        Replacement(
            owner=compile_utils.LossesContainer,
            name="__call__",
            parameters="self ...",
            make=around(_losses_of_model),
            reason="it shows a loss of the user's that is a sum over the batch as a mean over the replicas",
        ),
        Replacement(
            owner=loss_scale_optimizer,
            name="strategy_supports_loss_scaling",
            parameters="...",
            make=around(_supports_loss_scaling),
            reason="mixed_float16 is refused under CentralStorageStrategy, where it works",
        ),
        Replacement(
            owner=losses_utils,
            name="scale_loss_for_distribution",
            parameters="loss_value",
            fingerprints=("85abae5f16dc",),
            make=lambda original: _scale_loss,
            reason="each local mean weighs 1/replicas, regardless of its number of examples",
        ),
        Replacement(
            owner=losses_utils,
            name="apply_valid_mask",
            parameters="losses sw mask reduction",
            fingerprints=("541c072a3c81",),
            make=around(_apply_valid_mask),
            reason="each replica divides by its own valid entries, and by 0 where it has none",
        ),
        Replacement(
            owner=losses.Loss,
            name="_get_reduction",
            parameters="self",
            fingerprints=("2582a0c2d1c2",),
            make=around(_get_reduction),
            reason="the default reduction is refused in a train_step, where it is right for local means",
        ),
        Replacement(
            owner=batch_normalization.BatchNormalizationBase,
            name="call",
            parameters="self inputs ...",
            make=around(_normalise),
            reason="a fused operation does not show its statistics to the check of a model's own losses",
        ),
        Replacement(
            owner=batch_normalization.BatchNormalizationBase,
            name="_moments",
            parameters="self inputs ...",
            make=around(_moments),
            reason=(
                "the check of a model's own losses needs the same statistics for a batch and its parts; "
                "gradients through statistics of all replicas weigh an uneven batch wrongly"
            ),
        ),
        Replacement(
            owner=base_metric.Mean,
            name="update_state",
            parameters="self values sample_weight",
            make=around(_update_state),
            reason="the mean of a train_step's own loss weighs all replicas alike",
        ),
    )


def build(of: Any, variables: Sequence[Any]) -> None:
    """Makes an optimizer's variables for those that it will update, unless they are there. In a scope."""
    if isinstance(of, optimizer_v2.OptimizerV2):
        of._create_all_weights(variables)
    else:
        of.build(variables)


def _recorded(original: Callable[..., Any], self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    probe, accumulated = gradient_probe.active(), accumulation.active()
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


def _normalise(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if gradient_probe.active() is None:
        return original(self, *args, **kwargs)
    with tf_private.own_attributes([(self, "fused", False)]):
        return original(self, *args, **kwargs)


def _moments(original: Callable[..., Any], self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if gradient_probe.active() is None and getattr(self, "synchronized", False):
        return replica_share.synchronized_moments(lambda one: original(self, one, *args, **kwargs), inputs)
    return gradient_probe.statistics_of(self, lambda: original(self, inputs, *args, **kwargs))


def _process_kwargs(original: Callable[..., None], self: Any, kwargs: dict[str, Any]) -> None:
    if "lr" in kwargs:
        gradients.note_ignored_rate(self, kwargs["lr"])
    original(self, kwargs)


def _compute_current_learning_rate(original: Callable[..., None], self: Any) -> None:
    if (rate := getattr(self, "_current_learning_rate", None)) is not None:
        _make_assignable([rate])
    original(self)


def _make_assignable(variables: Iterable[Any]) -> None:
    """Lets the replicas of central_storage assign the variables that they share."""
    if is_central(tf.distribute.get_strategy()):
        for variable in variables:
            tf_private.assign_of_first_replica(variable)


def _supports_loss_scaling(original: Callable[..., Any]) -> Any:
    return shares_variables(tf.distribute.get_strategy()) or original()


def _internal_apply_gradients(original: Callable[..., Any], self: Any, grads_and_vars: Any) -> Any:
    pairs, own = list(grads_and_vars), self._distribution_strategy
    is_outside = own is not None and not tf_private.is_default(own) and not tf.distribute.has_strategy()
    if is_outside and not all(own.extended.variable_created_in_scope(one) for _, one in pairs):
        # It goes with a model whose variables no scope has made.
        self._distribution_strategy = tf.distribute.get_strategy()
    return original(self, joined_gradients(pairs))


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


def _scale_loss(loss_value: Any) -> Any:
    # The gradient of a loss for each example, which add_loss was given, is that of a sum.
    scale = replica_share.scale_sum if loss_value.shape.rank else replica_share.scale_by_share
    return scale(loss_value)


def _apply_valid_mask(original: Callable[..., Any], losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
    weights = original(losses, sw, mask, reduction)
    is_mean = reduction in (losses_utils.ReductionV2.AUTO, losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE)
    if mask is None or replica_share.is_whole() or not is_mean:
        return weights
    valid = tf.reduce_sum(tf.cast(mask, weights.dtype))
    factor = tf.math.divide_no_nan(valid, replica_share.in_proportion(valid))
    return tf.where(valid > 0, weights * factor, tf.zeros_like(weights))


def _get_reduction(original: Callable[..., Any], self: Any) -> Any:
    is_default = self.reduction in (
        losses_utils.ReductionV2.AUTO,
        losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE,
    )
    # What a layer gives to add_loss is scaled when the model sums up its losses (compile_utils.py).
    is_in_layer = base_layer_utils.call_context().in_call and replica_share.is_in_model_step()
    if is_default and (replica_share.is_whole() or is_in_layer or replica_share.is_local_mean()):
        return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE
    return original(self)


class _Container(threading.local):
    """Whether the losses that `compile` was given are being computed, in the thread that traces a step."""

    is_called = False


_container = _Container()


def _losses_of_model(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    with tf_private.changed(_container, is_called=True):
        return original(self, *args, **kwargs)


def _update_state(original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None) -> Any:
    if getattr(values, "shape", None) == ():
        if _container.is_called and replica_share.is_sum():  # and weighted by the replica's examples
            values = replica_share.unscale_by_share(values)
        values, sample_weight = replica_share.of_step(self, values, sample_weight)
    return original(self, values, sample_weight=sample_weight)
