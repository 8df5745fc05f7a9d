"""What raydist changes in Keras 3's losses: each replica's loss counts by its share."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.losses import loss as loss_module
from keras.src.metrics import reduction_metrics
from keras.src.trainers import compile_utils

from raydist.known_versions import version_of
from raydist.training.keras_patches.keras3 import replica_threads
from raydist.training.keras_patches.replacement import replaces
from raydist.training.replicas import gradient_probe, replica_share


@replaces(
    keras.layers.BatchNormalization,
    "_moments",
    "self inputs mask",
    because="the check of a model's own losses needs the same statistics for a batch and its parts; "
    "gradients through statistics of all replicas weigh an uneven batch wrongly",
)
def _moments(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
    if gradient_probe.active() is None and self.synchronized:
        return replica_share.synchronized_moments(lambda given: original(self, given, mask), inputs)
    return gradient_probe.statistics_of(self, lambda: original(self, inputs, mask))


@replaces(
    keras.Layer,
    "add_loss",
    "self loss",
    because="replicas share what layers hold; an activity_regularizer's loss is a sum before 3.14",
    is_maker=True,
)
def _make_add_loss(original: Callable[..., None]) -> Callable[..., None]:
    # Layers call `add_loss` in their `call`; `__call__` itself does so for its activity_regularizer alone.
    of_regularizer = inspect.unwrap(keras.Layer.__call__).__code__
    # From 3.14 on Keras divides it by the number of examples: it is a mean, as what is weighted has to be.
    has_sums = version_of(keras.__version__) < (3, 14)

    @functools.wraps(original)
    def add_loss(self: Any, loss: Any) -> None:
        is_of_regularizer = has_sums and sys._getframe(1).f_code is of_regularizer
        is_sum = is_of_regularizer and replica_share.current.is_of_model
        # As a loss for each example is, of which the model's is the sum.
        original(self, tf.reshape(loss, (1,)) if is_sum else loss)
        replica_threads.take_losses(self)

    return add_loss


@replaces(
    loss_module,
    "scale_loss_for_distribution",
    "value",
    "143cd8a5efb6",
    because="each local mean weighs 1/replicas, regardless of its number of examples",
)
def _scale_loss(original: Callable[..., Any], value: Any) -> Any:
    # A layer's add_loss is scaled when the model sums up its losses (trainer.py,
    # `_aggregate_additional_loss`), so a loss object inside of a layer would be scaled twice.
    is_in_layer = global_state.get_global_attribute("current_call_ctx") is not None
    if is_in_layer and replica_share.current.is_of_model:
        return value
    return replica_share.scale_by_share(value)


@replaces(
    loss_module,
    "unscale_loss_for_distribution",
    "value",
    "3903c7ed7f69",
    because="it undoes scale_loss_for_distribution",
)
def _unscale_loss(original: Callable[..., Any], value: Any) -> Any:
    # With reduction="none" it is a loss for each example, which nothing has scaled.
    return replica_share.unscale_by_share(value) if value.shape.rank in (0, None) else value


@replaces(
    loss_module,
    "apply_mask",
    "sample_weight mask dtype reduction",
    "61d8938cd866",
    "13f8242de3cd",
    "c08def1fbac1",
    because="each replica divides by its own valid entries, and is weighted by its examples",
)
def _apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any
) -> Any:
    weights = original(sample_weight, mask, dtype, reduction)
    if mask is None or replica_share.is_whole() or reduction not in ("mean", "sum_over_batch_size"):
        return weights
    valid = tf.reduce_sum(tf.cast(mask, weights.dtype))
    return weights * tf.math.divide_no_nan(valid, replica_share.in_proportion(valid))


@replaces(
    loss_module,
    "reduce_values",
    "values sample_weight reduction",
    "60b046214772",
    because="each replica divides by its own sample weights, and is weighted by its examples",
)
def _reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: Any = "sum_over_batch_size",
) -> Any:
    loss = original(values, sample_weight, reduction)
    is_by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    if not is_by_weights or replica_share.is_whole() or tuple(values.shape) in ((), (0,)):
        return loss
    total = tf.cast(tf.reduce_sum(sample_weight), loss.dtype)
    return loss * tf.math.divide_no_nan(total, replica_share.in_proportion(total))


@replaces(
    reduction_metrics.Mean,
    "update_state",
    "self values sample_weight",
    because="the mean of a train_step's own loss, or of one output's, weighs each replica alike",
    is_maker=True,
)
def _make_update_state(original: Callable[..., None]) -> Callable[..., None]:
    of_outputs = inspect.unwrap(compile_utils.CompileLoss.call).__code__

    @functools.wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        # The loss of each of several outputs weighs as many examples as a batch has by its static shape: in
        # Keras's own graphs none, or as many in every batch. In raydist's it may be that of one batch. In
        # eager steps Keras weighs each loss by its examples, so each replica counts its own and no padding.
        is_static = sys._getframe(1).f_code is of_outputs and replica_share.current.is_of_model
        if is_static:
            share = replica_share.step_weight(values.dtype)
            if not tf.executing_eagerly():
                sample_weight = share if values.shape.rank in (0, None) else None
            elif share is not None:
                sample_weight = tf.cast(sample_weight, share.dtype) * tf.sign(share)
        elif getattr(values, "shape", None) == ():
            values, sample_weight = replica_share.of_step(self, values, sample_weight)
        original(self, values, sample_weight=sample_weight)

    return update_state
