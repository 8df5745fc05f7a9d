"""All that raydist replaces in tf_keras (Keras 2).

Stock tf_keras works under MultiWorkerMirroredStrategy, but reduces each metric over the workers in
each step, sums what is summed already (batch logs are N times too large), and weighs an uneven batch
wrongly. Each replacement names its cause; see tensorflow-notes.md#logs-and-metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import training

from raydist import tf_private
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.tf_keras import (
    coordinated,
    data_handler,
    model_training,
    optimizers,
    random_layers,
)
from raydist.training.user_code import side_effects


def patch(*, sync_batchnorm: bool) -> str | None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Returns:
      A sentence for the run's notes if this tf_keras, or TensorFlow, is newer than raydist knows.

    Raises:
      UnsupportedError: The replacements do not fit this tf_keras.
    """
    note = replacement.apply(replacements(), library=tf_keras, tensorflow=tf.__version__)
    replacement.put_below(training.Model, model_training.RaydistModel)
    tf_private.prepare_replica_threads(random_layers.prepare_replica)
    side_effects.keep_generator(random_layers.take_seeds)
    if sync_batchnorm:
        _synchronize_batchnorm()
    return note


def replacements() -> tuple[replacement.Replacement, ...]:
    return replacement.marked_in(coordinated, data_handler, model_training, optimizers, random_layers)


def _synchronize_batchnorm() -> None:
    layer = tf_keras.layers.BatchNormalization
    layer.__init__ = replacement.around(_synchronized_init)(layer.__init__)


def _synchronized_init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.setdefault("synchronized", True)
    original(self, *args, **kwargs)
