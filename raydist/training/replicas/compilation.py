"""Whether XLA compiles the steps of a model: by `jit_compile=True`, or parts of them by itself."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from raydist.training.replicas import clustering
from raydist.training.reporting import reporter


def note_clustering(strategy: tf.distribute.Strategy) -> None:
    """Tells where XLA compiles parts of the steps by itself, and nobody has compared the results."""
    sentence = clustering.note_on(
        num_replicas=strategy.num_replicas_in_sync,
        num_gpus=len(tf.config.list_logical_devices("GPU")),
        jit=tf.config.optimizer.get_jit(),
        flags=os.environ.get("TF_XLA_FLAGS", ""),
    )
    if sentence is not None:
        reporter.note(sentence)


def is_compiled(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether the steps of `model` are to be compiled, for data of any kind.

    XLA compiles for one device: a step that several replicas share has collectives, or parts on several
    devices. The run's notes say where it was asked for in vain.
    """
    note_clustering(strategy)
    if not model.jit_compile:
        return False
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas == 1:
        return True
    reporter.note(
        f"model {model.name} has jit_compile=True, and its steps run without XLA: XLA compiles for one "
        f"device, and {num_replicas} replicas share each step"
    )
    return False
