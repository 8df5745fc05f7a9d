"""What raydist changes in Keras 3's losses and their display: each replica's loss counts by its share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.losses import loss as loss_module
from keras.src.metrics import reduction_metrics
from keras.src.trainers import trainer as base_trainer

from raydist.strategies import own_logs, replica_share, tensorflow_internals
from raydist.strategies.replacement import Replacement


def replacements() -> tuple[Replacement, ...]:
    return (
        Replacement(
            owner=loss_module,
            name="scale_loss_for_distribution",
            fingerprint="143cd8a5efb6",
            make=lambda original: _scale_loss,
            reason="each local mean weighs 1/replicas, whatever its number of examples (TF_NOTES 7)",
        ),
        Replacement(
            owner=loss_module,
            name="unscale_loss_for_distribution",
            fingerprint="3903c7ed7f69",
            make=lambda original: _unscale_loss,
            reason="it undoes scale_loss_for_distribution",
        ),
        Replacement(
            owner=reduction_metrics.Mean,
            name="update_state",
            fingerprint="addc194e254f",
            make=_make_update_state,
            reason="the mean of a train_step's own loss weighs each replica alike, whatever its examples",
        ),
        Replacement(
            owner=base_trainer.Trainer,
            name="_get_metrics_result_or_logs",
            fingerprint="1c7ab4a2c8e6",
            make=_make_logs_of_epoch,
            reason="values of a user's own step that are no metrics differ from worker to worker",
        ),
    )


def _scale_loss(value: Any) -> Any:
    # A layer's add_loss is scaled when the model sums up its losses (trainer.py,
    # `_aggregate_additional_loss`), so a loss object inside of a layer would be scaled twice.
    if global_state.get_global_attribute("current_call_ctx") is not None:
        return value
    return replica_share.scale_by_share(value, tf.distribute.get_strategy().num_replicas_in_sync)


def _unscale_loss(value: Any) -> Any:
    return replica_share.unscale_by_share(value, tf.distribute.get_strategy().num_replicas_in_sync)


def _make_update_state(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        if sample_weight is None and getattr(values, "shape", None) == ():
            sample_weight = replica_share.local_mean_weight(tf.distribute.get_strategy().num_replicas_in_sync)
        original(self, values, sample_weight=sample_weight)

    return update_state


def _make_logs_of_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        results = original(self, logs)
        strategy = self.distribute_strategy
        if results is not logs or not isinstance(logs, dict) or tensorflow_internals.is_default(strategy):
            return results
        return own_logs.of_all_replicas(strategy, logs, self.get_metrics_result())

    return _get_metrics_result_or_logs
