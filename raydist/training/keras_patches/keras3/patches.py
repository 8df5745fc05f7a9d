"""All that raydist replaces in Keras 3.

Stock Keras 3.10 to 3.15 cannot `fit` under MultiWorkerMirroredStrategy (keras#20585), nor run several steps
per execution under any strategy with several replicas (keras#19246). Each replacement names its
cause; tensorflow-notes.md#keras-3-under-multiworkermirroredstrategy and what follows there has the places.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

from raydist.training import tf_private
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.keras3 import (
    epochs,
    losses,
    optimizers,
    replica_threads,
    trainer,
    variables,
)


def patch(
    *, sync_batchnorm: bool, check: Callable[[str], str | None] | None, newer: tuple[str, str] | None = None
) -> str | None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Args:
      check, newer: As for `replacement.apply`.

    Returns:
      A sentence for the run's notes if this keras had to be checked.

    Raises:
      UnsupportedError: The replacements do not fit this Keras, or failed the check.
    """
    note = replacement.apply(replacements(), library=keras, check=check, newer=newer)
    replacement.put_below(keras.Model, trainer.RaydistTrainer)
    tf_private.prepare_replica_threads(replica_threads.prepare)
    if sync_batchnorm:
        variables.synchronize_batchnorm()
    return note


def replacements() -> tuple[replacement.Replacement, ...]:
    """Returns all that `patch` replaces."""
    return replacement.marked_in(epochs, losses, optimizers, replica_threads, trainer, variables)
