"""What is to be told where XLA compiles parts of the steps by itself. No TensorFlow: the devices are data."""

from __future__ import annotations


def note_on(*, num_replicas: int, num_gpus: int, jit: str, flags: str) -> str | None:
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
    """Whether XLA chooses parts of graphs to compile; takes the same as `note_on`."""
    return bool(jit) or any(f"--tf_xla_auto_jit={level}" in flags for level in ("1", "2", "fusible"))
