"""All that raydist replaces in Keras 3.

Stock Keras 3.15 cannot `fit` under MultiWorkerMirroredStrategy (keras#20585), nor run several steps
per execution under any strategy with several replicas (keras#19246). TF_NOTES 1 has the causes by
file and line; each replacement names its own.
"""

from __future__ import annotations

import functools

import keras
from keras.src.backend.common import variables as common_variables
from keras.src.backend.tensorflow import core, trainer as tf_trainer

from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.keras3 import (
    build,
    epochs,
    losses,
    optimizers,
    statistics,
    trainer,
    variables,
)
from raydist.training.keras_patches.replacement import Replacement

VERSION = "3.15"


def patch(*, sync_batchnorm: bool) -> None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Raises:
      UnsupportedError: This Keras is not the one that the replacements were written for.
    """
    replacement.apply(replacements(), library=keras, version=VERSION)
    if sync_batchnorm:
        statistics.synchronize_batchnorm()


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `patch` replaces."""
    model, epoch_iterator = tf_trainer.TensorFlowTrainer, tf_trainer.TFEpochIterator
    return (
        Replacement(
            owner=model,
            name="_maybe_symbolic_build",
            fingerprint="92a504f5eba9",
            make=build.make_symbolic_build,
            reason="strategy.reduce takes no nests: fit fails on `PerReplica` (keras#20585)",
        ),
        Replacement(
            owner=model,
            name="_make_function",
            fingerprint="bb33b7a0da3d",
            make=trainer.make_step_function,
            reason="scalars are reduced on axis 0 (keras#20585); several steps lose a capture (keras#19246)",
        ),
        Replacement(
            owner=model,
            name="make_predict_function",
            fingerprint="a772a2efdd90",
            make=trainer.make_predict_function,
            reason="global batches arrive as slices, whose padding examples must not be predicted",
        ),
        Replacement(
            owner=model,
            name="fit",
            fingerprint="a9a6dc02a7dd",
            make=trainer.make_checked_fit,
            reason="what cannot work is refused before training (keras#20582)",
        ),
        Replacement(
            owner=model,
            name="evaluate",
            fingerprint="a1facf652816",
            make=statistics.make_with_equal_statistics,
            reason="BatchNormalization's moving statistics drift apart per replica (TF_NOTES 1.5)",
        ),
        Replacement(
            owner=model,
            name="predict",
            fingerprint="ee5831d7d217",
            make=statistics.make_with_equal_statistics,
            reason="as for evaluate",
        ),
        *(
            Replacement(
                owner=model,
                name=name,
                fingerprint=fingerprint,
                make=statistics.make_with_equal_statistics,
                reason="as for evaluate",
            )
            for name, fingerprint in (("test_on_batch", "200619489306"), ("predict_on_batch", "05be67cba664"))
        ),
        Replacement(
            owner=epoch_iterator,
            name="__init__",
            fingerprint="901af2700297",
            make=epochs.make_epoch_iterator_init,
            reason="an uneven global batch is weighted wrongly, an empty one becomes NaN (TF_NOTES 1.6, 7)",
        ),
        Replacement(
            owner=epoch_iterator,
            name="_enumerate_iterator",
            fingerprint="376e3e16a928",
            make=epochs.make_enumerate_iterator,
            reason="an epoch's last call runs only what is left; a resumed run starts inside one",
        ),
        *losses.replacements(),
        *optimizers.replacements(),
        Replacement(
            owner=core.Variable,
            name="_initialize",
            fingerprint="ab759c22f87f",
            make=variables.make_initialize,
            reason="CentralStorageStrategy needs an aggregation for layers' state (TF_NOTES 1.5)",
        ),
        *(
            Replacement(
                owner=common_variables.Variable,
                name=name,
                fingerprint=fingerprint,
                make=functools.partial(variables.make_atomic, name=name),
                reason="assign(self + x) loses what other workers add meanwhile (TF_NOTES 2)",
            )
            for name, fingerprint in (("assign_add", "02093eccc2e3"), ("assign_sub", "d5f310723e8b"))
        ),
        Replacement(
            owner=core.Variable,
            name="_direct_assign",
            fingerprint="170647e9816d",
            make=variables.make_direct_assign,
            reason="metrics assign(self + x), and CentralStorageStrategy sums it with self in each",
        ),
    )
