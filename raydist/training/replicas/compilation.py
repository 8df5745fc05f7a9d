"""Whether XLA compiles the steps of a model: by `jit_compile=True`, or parts of them by itself.

Decisions about devices that are described need no TensorFlow, so it is imported where it is asked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


def note_on_clustering(*, num_replicas: int, num_gpus: int, jit: str, flags: str) -> str | None:
    """Returns what is to be told where XLA compiles parts of a step that several replicas with GPUs share.

    Args:
      num_gpus: Of this task.
      jit: What `tf.config.optimizer.get_jit` returns; empty where XLA does not choose parts by itself.
      flags: TF_XLA_FLAGS.
    """
    if num_replicas == 1 or num_gpus == 0 or not is_clustering(jit=jit, flags=flags):
        return None
    return (
        f"XLA compiles parts of the steps that {num_replicas} replicas with GPUs share; TensorFlow has open "
        "reports of other losses there (tensorflow#120580, #120989, #121429), and raydist has not compared "
        "them: compare with a run without set_jit and --tf_xla_auto_jit"
    )


def is_clustering(*, jit: str, flags: str) -> bool:
    """Whether XLA chooses parts of graphs to compile; takes the same as `note_on_clustering`."""
    return bool(jit) or any(f"--tf_xla_auto_jit={level}" in flags for level in ("1", "2", "fusible"))


def note_clustering(strategy: tf.distribute.Strategy) -> None:
    """Tells where XLA compiles parts of the steps by itself, and nobody has compared the results."""
    import tensorflow as tf

    from raydist.training.reporting import reporter

    reporter.note(
        note_on_clustering(
            num_replicas=strategy.num_replicas_in_sync,
            num_gpus=len(tf.config.list_logical_devices("GPU")),
            jit=tf.config.optimizer.get_jit(),
            flags=os.environ.get("TF_XLA_FLAGS", ""),
        )
    )


def is_compiled(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether the steps of `model` are to be compiled, for data of any kind.

    XLA compiles for one device: a step that several replicas share has collectives, or parts on several
    devices. The run's notes say where it was asked for in vain.
    """
    from raydist.training.reporting import reporter

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


def note_inlined(name: str) -> None:
    """Tells that a function of the user's with `jit_compile=True` runs without XLA."""
    from raydist.training.reporting import reporter

    reporter.note(
        f"the tf.function {name} has jit_compile=True, and runs without XLA inside of steps: XLA compiles "
        "for one device, and several replicas share each step"
    )
