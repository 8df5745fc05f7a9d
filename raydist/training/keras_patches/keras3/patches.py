"""All that raydist replaces in Keras 3.

Stock Keras 3.10 to 3.15 cannot `fit` under MultiWorkerMirroredStrategy (keras#20585), nor run several steps
per execution under any strategy with several replicas (keras#19246). Each replacement names its
cause; tensorflow-notes.md#keras-3-under-multiworkermirroredstrategy and what follows there has the places.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from raydist import tf_private
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.keras3 import (
    epochs,
    losses,
    optimizers,
    replica_threads,
    trainer,
    variables,
)


def patch(*, sync_batchnorm: bool) -> str | None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Returns:
      A sentence for the run's notes if this keras, or TensorFlow, is newer than raydist knows.

    Raises:
      UnsupportedError: The replacements do not fit this Keras.
    """
    note = replacement.apply(replacements(), library=keras, tensorflow=tf.__version__)
    replacement.put_below(keras.Model, trainer.RaydistTrainer)
    tf_private.prepare_replica_threads(replica_threads.prepare)
    if sync_batchnorm:
        variables.synchronize_batchnorm()
    return note


def replacements() -> tuple[replacement.Replacement, ...]:
    return replacement.marked_in(epochs, losses, optimizers, replica_threads, trainer, variables)
