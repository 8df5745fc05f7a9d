"""All that raydist replaces in Keras 3.

Stock Keras 3.10 to 3.15 cannot `fit` under MultiWorkerMirroredStrategy (keras#20585), nor run several steps
per execution under any strategy with several replicas (keras#19246). Each replacement names its
cause; tensorflow-notes.md#keras-3-under-multiworkermirroredstrategy and what follows there has the places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
from keras.src.backend.common import variables as common_variables
from keras.src.backend.tensorflow import core
from keras.src.random import seed_generator
from keras.src.trainers import trainer as base_trainer

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
from raydist.training.keras_patches.replacement import Replacement, around


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


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `patch` replaces."""
    return (
        Replacement(
            owner=base_trainer.Trainer,
            name="compile",
            parameters="self ...",
            make=around(trainer.compile_in_scope),
            reason="outside of the strategy's scope it gives each worker metrics of its own",
        ),
        *replacement.overridden(trainer.RaydistTrainer),
        *epochs.replacements(),
        *losses.replacements(),
        *optimizers.replacements(),
        Replacement(
            owner=keras.layers.Layer,
            name="_open_name_scope",
            parameters="self",
            make=around(variables.open_name_scope),
            reason="a model that is built outside of its strategy's scope gets variables of no replica",
        ),
        Replacement(
            owner=core.Variable,
            name="_initialize",
            parameters="self value",
            make=around(variables.initialize),
            reason=(
                "CentralStorageStrategy needs an aggregation for layers' state; what a traced "
                "step makes cannot be lifted out of it on several replicas (You must feed a value for …)"
            ),
        ),
        Replacement(
            owner=seed_generator,
            name="global_seed_generator",
            parameters="...",
            fingerprints=("4ec13060644e", "54e029e26c17"),  # the latter in 3.10
            make=around(replica_threads.global_seed_generator),
            reason="each thread of a replica makes a generator of its own, in each trace",
        ),
        *(
            Replacement(
                owner=common_variables.Variable,
                name=name,
                parameters="self value",
                fingerprints=(fingerprint,),
                make=around(functools.partial(variables.assign_atomically, name=name)),
                reason="assign(self + x) loses what other workers add in between",
            )
            for name, fingerprint in (("assign_add", "02093eccc2e3"), ("assign_sub", "d5f310723e8b"))
        ),
        Replacement(
            owner=common_variables.Variable,
            name="__repr__",
            parameters="self",
            make=around(variables.described),
            reason="it reads a metric's variable over all workers, and waits where one of them prints it",
        ),
        Replacement(
            owner=core.Variable,
            name="_direct_assign",
            parameters="self value",
            fingerprints=("170647e9816d",),
            make=around(variables.direct_assign),
            reason="metrics assign(self + x), and CentralStorageStrategy sums it with self in each",
        ),
    )
