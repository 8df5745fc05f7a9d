"""All that raydist replaces in tf_keras (Keras 2).

Stock tf_keras works under MultiWorkerMirroredStrategy, but reduces each metric over the workers in
each step, sums what is summed already (batch logs are N times too large), and weighs an uneven batch
wrongly. Each replacement names its cause; see tensorflow-notes.md#logs-and-metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tf_keras
from tf_keras.src.engine import base_layer, data_adapter, training
from tf_keras.src.engine.sequential import Sequential
from tf_keras.src.utils import metrics_utils

from raydist.training import tf_private
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.replacement import Replacement, around
from raydist.training.keras_patches.tf_keras import (
    coordinated,
    data_handler,
    model_training,
    optimizers,
    random_layers,
)
from raydist.training.replicas import side_effects


def patch(
    *, sync_batchnorm: bool, check: Callable[[str], str | None] | None, newer: tuple[str, str] | None = None
) -> str | None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Args:
      check, newer: As for `replacement.apply`.

    Returns:
      A sentence for the run's notes if this tf_keras had to be checked.

    Raises:
      UnsupportedError: The replacements do not fit this tf_keras, or failed the check.
    """
    note = replacement.apply(replacements(), library=tf_keras, check=check, newer=newer)
    replacement.put_below(training.Model, model_training.RaydistModel)
    tf_private.prepare_replica_threads(random_layers.prepare_replica)
    side_effects.keep_generator(random_layers.take_seeds)
    if sync_batchnorm:
        _synchronize_batchnorm()
    return note


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `patch` replaces."""
    return (
        *replacement.overridden(model_training.RaydistModel),
        *replacement.overridden(data_handler.ReplicaDataHandler),
        Replacement(
            owner=data_adapter,
            name="get_data_handler",
            parameters="args kwargs",
            fingerprints=("00f4fc572791",),
            make=around(data_handler.get_data_handler),
            reason="which steps go into which call is decided there",
        ),
        Replacement(
            owner=data_adapter,
            name="single_batch_iterator",
            parameters="strategy x y sample_weight class_weight",
            fingerprints=("f73090f406a9",),
            make=around(data_handler.single_batch_iterator),
            reason="train_on_batch makes a dataset of a batch, which is weighted wrongly",
        ),
        Replacement(
            owner=data_adapter.DatasetAdapter,
            name="_validate_args",
            parameters="self y sample_weights steps ...",
            make=around(data_handler.validate_args),
            reason="a distributed dataset needs steps_per_epoch, though its end can be seen",
        ),
        *optimizers.replacements(),
        *coordinated.replacements(),
        *(
            Replacement(
                owner=owner,
                name=name,
                parameters="self ...",
                make=around(model_training.in_own_scope),
                reason="a model that is built outside of its strategy's scope gets variables of no replica",
            )
            for owner, name in (
                (training.Model, "__call__"),
                (training.Model, "build"),
                (Sequential, "build"),
            )
        ),
        Replacement(
            owner=base_layer.Layer,
            name="load_own_variables",
            parameters="self store",
            make=around(model_training.load_own_variables),
            reason="a metric that is an attribute takes arrays alone where it is summed over replicas",
        ),
        *random_layers.replacements(),
        Replacement(
            owner=metrics_utils,
            name="update_state_wrapper",
            parameters="update_state_fn",
            make=around(model_training.update_state_wrapper),
            reason="a metric cannot be updated where the check of a model's own losses traces the step",
        ),
        Replacement(
            owner=base_layer.Layer,
            name="add_weight",
            parameters="self ...",
            make=around(model_training.add_weight),
            reason="the check of a step leaves the strategy, and makes what the step makes in its first call",
        ),
        Replacement(
            owner=metrics_utils,
            name="result_wrapper",
            parameters="result_fn",
            fingerprints=("e266e01cef55",),
            make=around(model_training.result_wrapper),
            reason="reading a metric in a step is an all-reduce per variable",
        ),
    )


def _synchronize_batchnorm() -> None:
    layer = tf_keras.layers.BatchNormalization
    layer.__init__ = around(_synchronized_init)(layer.__init__)


def _synchronized_init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.setdefault("synchronized", True)
    original(self, *args, **kwargs)
