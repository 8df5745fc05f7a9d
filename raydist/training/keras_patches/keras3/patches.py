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
from keras.src.backend.tensorflow import core, trainer as tf_trainer
from keras.src.random import seed_generator
from keras.src.trainers import trainer as base_trainer

from raydist.training import tf_private
from raydist.training.cluster import collective_calls
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
    tf_private.prepare_replica_threads(replica_threads.prepare)
    if sync_batchnorm:
        variables.synchronize_batchnorm()
    return note


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `patch` replaces."""
    model, epoch_iterator = tf_trainer.TensorFlowTrainer, tf_trainer.TFEpochIterator
    return (
        Replacement(
            owner=base_trainer.Trainer,
            name="compile",
            parameters="self ...",
            make=around(trainer.compile_in_scope),
            reason="outside of the strategy's scope it gives each worker metrics of its own",
        ),
        Replacement(
            owner=model,
            name="_maybe_symbolic_build",
            parameters="self iterator data_batch",
            fingerprints=("92a504f5eba9", "181752273e37"),  # the latter in 3.10
            make=around(trainer.symbolic_build),
            reason="strategy.reduce takes no nests: fit fails on `PerReplica` (keras#20585)",
        ),
        Replacement(
            owner=model,
            name="_make_function",
            parameters="self step_function",
            fingerprints=("bb33b7a0da3d", "55eb952812ca"),  # the latter before 3.12
            make=around(trainer.step_function),
            reason="scalars are reduced on axis 0 (keras#20585); several steps lose a capture (keras#19246)",
        ),
        Replacement(
            owner=model,
            name="make_predict_function",
            parameters="self force",
            fingerprints=("a772a2efdd90", "5f1a30acee30"),  # the latter before 3.12
            make=around(trainer.predict_function),
            reason="global batches arrive as slices, whose padding examples must not be predicted",
        ),
        Replacement(
            owner=model,
            name="fit",
            parameters="self callbacks initial_epoch ...",
            make=around(trainer.checked_fit),
            reason="what cannot work is refused before training (keras#20582)",
        ),
        *(
            Replacement(
                owner=model,
                name=name,
                parameters="self ...",
                make=around(variables.with_equal_statistics),
                reason="BatchNormalization's moving statistics drift apart per replica",
            )
            for name in ("evaluate", "predict", "test_on_batch", "predict_on_batch")
        ),
        Replacement(
            owner=model,
            name="train_on_batch",
            parameters="self ...",
            make=around(variables.then_equal_statistics),
            reason="a worker that saves alone would have its own replicas' moving statistics",
        ),
        *(
            Replacement(
                owner=model,
                name=name,
                parameters="self ...",
                make=around(collective_calls.method_of_all(name)),
                reason=collective_calls.REASON,
            )
            for name in collective_calls.METHODS
        ),
        Replacement(
            owner=epoch_iterator,
            name="__init__",
            parameters="self distribute_strategy args kwargs",
            fingerprints=("901af2700297",),
            make=around(epochs.epoch_iterator_init),
            reason="an uneven global batch is weighted wrongly, an empty one becomes NaN",
        ),
        Replacement(
            owner=epoch_iterator,
            name="_enumerate_iterator",
            parameters="self",
            fingerprints=("376e3e16a928", "5b12fbb1202b"),  # the latter in 3.10
            make=around(epochs.enumerate_iterator),
            reason="an epoch's last call runs only what is left; a resumed run starts inside one",
        ),
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
