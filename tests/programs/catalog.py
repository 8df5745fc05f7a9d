"""The table of all programs: which Kerases they are for, and what is expected of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Expected(enum.Enum):
    """What several replicas make of a program.

    EQUAL: Every variable is that of one device.
    TOLD: They cannot, and the run says so, in a note or by an error; Program.told says in which words.
    """

    EQUAL = "equal"
    TOLD = "told"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
      name: Its module in tests/programs.
      expected: By each Keras that it can be written for.
      told: Pieces of the sentences that a run of several replicas must say.
      atol: How far a variable may be from that of one device.
      checkpoint_every: Of a run that is killed after `kill_after` calls of its train function.
    """

    name: str
    expected: Mapping[str, Expected]
    told: tuple[str, ...] = ()
    atol: float = 1e-5
    checkpoint_every: str = "2"
    kill_after: int = 5


BOTH = MappingProxyType({"3": Expected.EQUAL, "legacy": Expected.EQUAL})
TOLD_BY_BOTH = MappingProxyType({"3": Expected.TOLD, "legacy": Expected.TOLD})
TOLD_BY_KERAS_3 = MappingProxyType({"3": Expected.TOLD, "legacy": Expected.EQUAL})
ONLY_KERAS_3 = MappingProxyType({"3": Expected.EQUAL})

RANDOM = "random numbers"
BATCHNORM = "--sync-batchnorm"

# In the order in which they share a process.
PROGRAMS = {
    program.name: program
    for program in (
        Program(name="custom_loop", expected=BOTH),
        Program(name="dcgan", expected=BOTH),
        Program(name="efficient_embeddings", expected=BOTH),
        Program(name="ema", expected=BOTH),
        Program(name="masked_tagger", expected=BOTH),
        # Sums over the batch are rounded to 11 bits, and those of parts in another way.
        Program(name="mixed_float16", expected=BOTH, atol=2e-3),
        Program(name="own_fit", expected=BOTH, kill_after=4),
        Program(name="returned_losses", expected=BOTH, kill_after=4),
        Program(name="text_transformer", expected=BOTH),
        Program(name="train_step_keras2", expected=BOTH),
        Program(name="train_step_guide", expected=BOTH, kill_after=6),
        Program(name="wgan_gp", expected=BOTH),
        Program(name="wide_deep", expected=BOTH),
        # Losses of a batch that are not the mean of its examples' own.
        Program(
            name="supervised_contrastive", expected=TOLD_BY_BOTH, told=("compares the examples of a batch",)
        ),
        # Random numbers, and statistics of a batch.
        Program(name="convnet_regularized", expected=TOLD_BY_BOTH, told=(RANDOM, BATCHNORM)),
    )
}

ONLY_TF_KERAS = MappingProxyType({"legacy": Expected.EQUAL})

# What is compared with plain Keras in processes without raydist, and calls `model.fit` itself.
BARE = {
    program.name: program
    for program in (
        Program(name="losses_of_outputs", expected=ONLY_TF_KERAS),
        *(Program(name=f"tutorials.{name}", expected=BOTH) for name in ("text_generation", "saved")),
        # tf_keras refuses models in a scope with layers that were adapted outside. Steps outside of the
        # scope cannot use its optimizers and metrics.
        *(
            Program(name=f"tutorials.{name}", expected=ONLY_KERAS_3)
            for name in ("structured_data", "text_classification", "actor_critic", "loops")
        ),
        Program(
            name="tutorials.translation",
            expected=TOLD_BY_BOTH,
            told=("gives the gradients of one device could not be shown", "masked_acc from masked_acc"),
        ),
        # In Keras 3 `training=False`, with which the base is called, gives way to that of `fit`.
        Program(name="tutorials.transfer_learning", expected=TOLD_BY_KERAS_3, told=(BATCHNORM,)),
    )
}


def names(keras: str, expected: Expected) -> list[str]:
    """Returns the names of the programs of which one Keras is expected to make that."""
    return [one.name for one in PROGRAMS.values() if one.expected.get(keras) is expected]
