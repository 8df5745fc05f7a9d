"""The table of all programs: which Kerases they are for, and what is expected of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

KERASES = ("3", "legacy")


class Expected(enum.Enum):
    """What several replicas make of a program.

    EQUAL: Every variable is that of one device.
    TOLD: They cannot, and the run says so: in a note, or by an error of one sentence.
    """

    EQUAL = "equal"
    TOLD = "told"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
      name: Its module in tests/programs.
      kerases: Those that it can be written for.
      expected: By Keras.
      atol: How far a variable may be from that of one device.
    """

    name: str
    kerases: tuple[str, ...] = KERASES
    expected: dict[str, Expected] = field(default_factory=lambda: dict.fromkeys(KERASES, Expected.EQUAL))
    atol: float = 1e-5


PROGRAMS = {
    program.name: program
    for program in (
        Program(name="autoencoder"),
        Program(name="bilstm"),
        Program(name="captcha_ctc"),
        Program(name="clipping"),
        Program(name="convnet"),
        Program(name="custom_loop"),
        Program(name="dcgan"),
        Program(name="distillation"),
        Program(name="efficient_embeddings"),
        Program(name="ema"),
        Program(name="endpoint_layer"),
        Program(name="graph_attention"),
        Program(name="imbalanced"),
        Program(name="issue_tickets"),
        Program(name="masked_tagger"),
        Program(name="miniature_gpt"),
        # Sums over the batch are rounded to 8 or 11 bits, and the sum of two parts in another way than the whole.
        Program(name="mixed_bfloat16", atol=2e-3),
        Program(name="mixed_float16", atol=2e-3),
        Program(name="ner"),
        Program(name="rate_callbacks"),
        Program(name="recommender"),
        Program(name="schedules"),
        Program(name="supervised_contrastive"),
        Program(name="text_transformer"),
        Program(name="timeseries_transformer"),
        Program(name="train_step_guide"),
        Program(name="vae"),
        Program(name="vision_transformer"),
        Program(name="weight_decay"),
        Program(name="wgan_gp"),
        Program(name="wide_deep"),
    )
}


def names_for(keras: str) -> list[str]:
    """Returns the names of the programs that one Keras can run."""
    return [program.name for program in PROGRAMS.values() if keras in program.kerases]
