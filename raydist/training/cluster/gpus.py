"""Whether TensorFlow sees the GPUs that Ray assigned to a task; without them it would train on the CPU."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass

from raydist.errors import DeviceError
from raydist.spec.tasks import TaskId
from raydist.spec.text import counted

# Before a message of TensorFlow's C++ code.
_PREFIX = re.compile(r"^(?:[IWEF]0000 |\d{4}-\d\d-\d\d [\d:.]+: [IWEF] )[^\]]*\] ")
_CAUSE = re.compile(r"cannot dlopen|could not find cuda|cuInit|cuda error", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class SeenGpus:
    """The GPUs that TensorFlow sees.

    Attributes:
      visible: CUDA_VISIBLE_DEVICES as Ray has set it; None where it did not.
      version: TensorFlow's.
      log: What TensorFlow printed while it looked for them.
    """

    num_seen: int
    visible: str | None
    version: str
    log: str


def check_gpus(task: TaskId, *, host: str, num_gpus: int) -> None:
    """Raises DeviceError if TensorFlow sees fewer than `num_gpus` GPUs. Before TensorFlow is used."""
    problem = problem_of(_look_for_gpus(), num_gpus=num_gpus, role=task.task_type.value)
    if problem is not None:
        raise DeviceError(f"{task} on {host} {problem}", task=str(task))


def problem_of(seen: SeenGpus, *, num_gpus: int, role: str) -> str | None:
    """Returns what is missing of the GPUs that Ray has assigned, why, and the remedy; None if nothing is.

    Args:
      role: Of the task: `worker` or `evaluator`.
    """
    if seen.num_seen >= num_gpus:
        return None
    asked = counted(num_gpus, "GPU")
    visible = "" if seen.visible is None else f" (CUDA_VISIBLE_DEVICES={seen.visible})"
    causes = [text for line in seen.log.splitlines() if _CAUSE.search(text := _PREFIX.sub("", line))]
    said = f": {causes[-1].partition('. ')[0].rstrip('.')}" if causes else ""
    return (
        f"has {asked} from Ray{visible}, and TensorFlow {seen.version} sees {seen.num_seen or 'none'}{said}; "
        f"install tensorflow[and-cuda]=={seen.version} on that host, and a driver that supports its "
        f"CUDA version, or run without GPUs (--gpus {role}=0)"
    )


def _look_for_gpus() -> SeenGpus:
    import tensorflow as tf  # not at the top: `problem_of` needs none

    sys.stderr.flush()
    with tempfile.TemporaryFile() as printed:
        stderr = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            num_seen = len(tf.config.list_physical_devices("GPU"))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            log = printed.read().decode(errors="replace")
            sys.stderr.write(log)  # it belongs in the task's log, above all if TensorFlow fails
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return SeenGpus(num_seen=num_seen, visible=visible, version=tf.__version__, log=log)
