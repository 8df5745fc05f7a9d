"""Every environment variable that a task needs before it imports TensorFlow. Pure: the actor applies them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from raydist.planning.assignment import TaskAssignment
from raydist.planning.tf_config import tf_config
from raydist.spec.job import KerasFlavour

Changes = dict[str, str | None]
"""Variable to value; None removes it."""


def static_environment(
    *,
    keras: KerasFlavour,
    num_cpus: float,
    num_gpus: int,
    tpu_name: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str],
) -> Changes:
    """Returns what is known before the tasks' addresses are, so that TensorFlow's import need not wait.

    Args:
      keras: The plan's choice, never AUTO.
      num_cpus: Logical CPUs of the task; fractions round down, to at least 1 thread.
      num_gpus: 0 hides every GPU; otherwise Ray has set CUDA_VISIBLE_DEVICES.
      given: The job's own variables (`env`), which come before raydist's.
      environ: The task's own environment, as it is before.
    """
    num_threads = max(1, int(num_cpus))
    changes: Changes = {
        # Explicit also for Keras 3: a value left over from `ray start` would choose the other one.
        "TF_USE_LEGACY_KERAS": "1" if keras is KerasFlavour.LEGACY else "0",
        "KERAS_BACKEND": "tensorflow",
        # TensorFlow sizes its pools to all cores of the host; it does not read Ray's OMP_NUM_THREADS.
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
        # One thread could wait for a peer and run what the peer waits for.
        "TF_NUM_INTEROP_THREADS": str(max(2, num_threads)),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        # Lets TensorFlow's server take the port that the actor's leased socket still holds.
        "TF_GRPC_REUSE_PORT": "true",
        # gRPC takes the first of grpc_proxy, https_proxy, http_proxy that is set, and an empty one means
        # no proxy (http_proxy_mapper.cc). So the tasks reach each other, and downloads keep their proxy.
        "grpc_proxy": "",
        # One left over from the host's own environment (Kubernetes' TFJob) names another cluster.
        "TF_CONFIG": None,
    }
    if num_gpus == 0:
        # Ray 2.60 shows an actor without GPUs all of them, and TensorFlow would take their memory.
        changes["CUDA_VISIBLE_DEVICES"] = ""
    if environ.get("GRPC_FAIL_FAST", "").lower() in ("false", "0"):
        changes["GRPC_FAIL_FAST"] = None  # calls to a dead peer would wait for ever
    if tpu_name is not None:
        changes["TPU_NAME"] = tpu_name
    return {**changes, **given}


def assignment_environment(assignment: TaskAssignment) -> Changes:
    """Returns what hangs on the addresses of an attempt's tasks."""
    return {"TF_CONFIG": tf_config(assignment.cluster_spec, assignment.task), **assignment.role_hosts}


def command_environment(
    *,
    run: str,
    role: str,
    index: int,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    python_folder: str,
) -> dict[str, str]:
    """Returns the whole environment of an extra role's command.

    Args:
      given: The job's own variables (`env`).
      environ: That of the process which starts it.
      python_folder: Where the tasks' Python is, which `python` in a command is to be.
    """
    found = {name: text for name, text in environ.items() if name != "TF_CONFIG"}
    # It reserves no GPU, and would take the memory of one that a worker uses.
    found |= {"CUDA_VISIBLE_DEVICES": "", **given}
    found["PATH"] = f"{python_folder}:{found.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    return found | {"RAYDIST_RUN": run, "RAYDIST_ROLE": role, "RAYDIST_INDEX": str(index)}
