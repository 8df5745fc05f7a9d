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
      is_slow: Whether it takes long to trace, or is much like another one.
    """

    name: str
    expected: Mapping[str, Expected]
    told: tuple[str, ...] = ()
    atol: float = 1e-5
    checkpoint_every: str = "2"
    kill_after: int = 5
    is_slow: bool = False


BOTH = MappingProxyType({"3": Expected.EQUAL, "legacy": Expected.EQUAL})
TOLD_BY_BOTH = MappingProxyType({"3": Expected.TOLD, "legacy": Expected.TOLD})
# A loss object of tf_keras refuses to guess how replicas are to be averaged, but in compile().
TOLD_BY_TF_KERAS = MappingProxyType({"3": Expected.EQUAL, "legacy": Expected.TOLD})
TOLD_BY_KERAS_3 = MappingProxyType({"3": Expected.TOLD, "legacy": Expected.EQUAL})
TOLD_BY_KERAS_3_ALONE = MappingProxyType({"3": Expected.TOLD})
ONLY_KERAS_3 = MappingProxyType({"3": Expected.EQUAL})

REDUCTION = ("Reduction.SUM",)
RANDOM = "random numbers"
BATCHNORM = "--sync-batchnorm"

# In the order in which they share a process.
PROGRAMS = {
    program.name: program
    for program in (
        Program(name="autoencoder", expected=BOTH, is_slow=True, kill_after=3),  # of two steps each
        Program(name="bilstm", expected=BOTH, is_slow=True),
        Program(name="captcha_ctc", expected=BOTH, is_slow=True),
        Program(name="clipping", expected=BOTH, is_slow=True),
        Program(name="convnet", expected=BOTH, is_slow=True),
        Program(name="custom_loop", expected=BOTH, is_slow=True),
        Program(name="dcgan", expected=BOTH, is_slow=True),
        Program(name="distillation", expected=BOTH, kill_after=11, is_slow=True),  # 2nd fit
        Program(name="efficient_embeddings", expected=BOTH, is_slow=True),
        Program(name="ema", expected=BOTH, is_slow=True),
        Program(name="endpoint_layer", expected=TOLD_BY_TF_KERAS, told=REDUCTION, is_slow=True),
        Program(name="graph_attention", expected=BOTH, is_slow=True),
        # A fit of the user's own continues with an epoch.
        Program(name="imbalanced", expected=BOTH, checkpoint_every="epoch", kill_after=6, is_slow=True),
        Program(name="issue_tickets", expected=BOTH, is_slow=True),
        Program(name="masked_tagger", expected=BOTH, is_slow=True),
        Program(name="miniature_gpt", expected=BOTH, is_slow=True),
        # Sums over the batch are rounded to 8 or 11 bits, and those of parts in another way.
        Program(name="mixed_bfloat16", expected=BOTH, is_slow=True, atol=2e-3),
        Program(name="mixed_float16", expected=BOTH, is_slow=True, atol=2e-3),
        Program(name="own_fit", expected=BOTH, kill_after=4, is_slow=True),
        Program(name="rate_callbacks", expected=BOTH, is_slow=True),
        Program(name="recommender", expected=BOTH, is_slow=True),
        Program(name="returned_losses", expected=BOTH, kill_after=4, is_slow=True),
        Program(name="schedules", expected=BOTH, is_slow=True),
        Program(name="steps_loop", expected=BOTH, is_slow=True, kill_after=1),
        Program(name="text_transformer", expected=BOTH, is_slow=True),
        Program(name="timeseries_transformer", expected=BOTH, is_slow=True),
        Program(name="train_step_compiled", expected=BOTH, is_slow=True),
        Program(name="train_step_keras2", expected=BOTH, is_slow=True),
        Program(name="train_step_guide", expected=BOTH, kill_after=6, is_slow=True),
        Program(name="vae", expected=BOTH, is_slow=True),
        Program(name="vision_transformer", expected=BOTH, is_slow=True),
        Program(name="vision_transformer_ops", expected=ONLY_KERAS_3, is_slow=True),
        Program(name="weight_decay", expected=BOTH, is_slow=True),
        Program(name="wgan_gp", expected=BOTH, is_slow=True),
        Program(name="wide_deep", expected=BOTH, is_slow=True),
        # Losses of a batch that are not the mean of its examples' own.
        Program(name="ner", expected=TOLD_BY_BOTH, told=("could not be shown",), is_slow=True),
        Program(
            name="supervised_contrastive", expected=TOLD_BY_BOTH, told=("compares the examples of a batch",)
        ),
        # Random numbers, and statistics of a batch.
        Program(name="attention_dropout", expected=TOLD_BY_BOTH, told=(RANDOM,), is_slow=True),
        Program(name="augmentation", expected=TOLD_BY_BOTH, told=(RANDOM,), is_slow=True),
        Program(name="convnet_regularized", expected=TOLD_BY_BOTH, told=(RANDOM, BATCHNORM)),
        Program(name="dcgan_random", expected=TOLD_BY_KERAS_3_ALONE, told=(RANDOM,), is_slow=True),
        Program(name="lstm_dropout", expected=TOLD_BY_BOTH, told=(RANDOM,)),
        Program(name="vae_random", expected=TOLD_BY_KERAS_3_ALONE, told=(RANDOM,), is_slow=True),
        # Keras 3 cannot do these with several replicas (keras#20582).
        Program(
            name="ema_overwrite", expected=TOLD_BY_KERAS_3, told=("ema_overwrite_frequency",), is_slow=True
        ),
        Program(
            name="gradient_accumulation",
            expected=TOLD_BY_KERAS_3_ALONE,
            told=("gradient_accumulation_steps",),
            is_slow=True,
        ),
    )
}

ONLY_TF_KERAS = MappingProxyType({"legacy": Expected.EQUAL})

# What is compared with plain Keras in processes without raydist, and calls `model.fit` itself.
BARE = {
    program.name: program
    for program in (
        Program(name="losses_of_outputs", expected=ONLY_TF_KERAS),
        *(
            Program(name=f"tutorials.{name}", expected=BOTH)
            for name in (
                *("autoencoder", "images", "saved", "segmentation", "text_generation", "time_series"),
                "word2vec",
            )
        ),
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
