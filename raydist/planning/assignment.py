"""What a task is told before it may import TensorFlow: its assignment, TF_CONFIG, environment variables.

Pure: the task's process applies them.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from raydist.planning.plan import Plan
from raydist.planning.shares import shares_of
from raydist.spec.job import JobSpec, KerasFlavour, Strategy
from raydist.spec.tasks import ClusterSpec, TaskId, TaskType, chief_of


@dataclass(frozen=True, kw_only=True)
class TaskAssignment:
    """One task's part in one attempt.

    Attributes:
      strategy, keras: The plan's choices, never AUTO.
      address: `host:port` that this task's TensorFlow server listens at; None where it needs none.
      cluster_spec: The addresses of all tasks; empty for a single-host strategy.
      attempt: 0 for the first attempt.
      run_uri: URI of the run's folder on storage.
      num_workers, num_ps: Tasks of type worker and ps, as the attempt began.
      num_slots: Workers that TensorFlow's cluster has room for, as some may come later.
      gpus_per_worker: GPUs of each worker, for tasks of every type.
      devices: Logical CPU devices to create; None leaves TensorFlow's one.
      shares: What each worker takes of a global batch; empty where all take as much.
      has_default_strategy: Whether the job runs in the scope of the run's strategy.
      has_own_loop: Whether it does not, because it updates weights in a loop of its own.
      data_service: `host:port` of tf.data service's dispatcher; None for a run without data workers.
      tpu_name: TPU to connect to, for strategy tpu.
      datasets: This task's share of each dataset that the run was given, by name: Ray Data's
        `DataIterator`, which only the train function looks into.
      fenced_in: IP addresses of the only hosts that may reach `address`; None for all.
      role_hosts: Addresses of the extra roles' hosts, with commas, by environment variable.
      files: What it writes for its user, ctx.output_dir included: `Files` of raydist.task.
      kept: Where its states are kept in memory, and what an attempt before has kept: `HandedState` of
        storage.kept_state; None keeps none.
      proof: What its host has found on storage, and has to find there until the end: `StorageProof` of
        storage.proof; None checks nothing.
      parcels: What tasks leave for each other past storage: `Parcels` of data.shared.
    """

    task: TaskId
    job: JobSpec
    strategy: Strategy
    keras: KerasFlavour
    cluster_spec: ClusterSpec
    attempt: int
    run_uri: str
    num_workers: int
    num_slots: int
    num_ps: int = 0
    num_cpus: float = 1.0
    num_gpus: int = 0
    gpus_per_worker: int = 0
    address: str | None = None
    devices: int | None = None
    shares: tuple[int, ...] = ()
    has_default_strategy: bool = False
    has_own_loop: bool = False
    data_service: str | None = None
    tpu_name: str | None = None
    datasets: Mapping[str, Any] = field(default_factory=dict)
    fenced_in: tuple[str, ...] | None = None
    parcels: Any = None
    role_hosts: Mapping[str, str] = field(default_factory=dict)
    files: Any = None
    kept: Any = None
    proof: Any = None

    def own_part(self, common: TaskAssignment) -> dict[str, Any]:
        """Returns the fields that differ from those of `common`, the assignment of another task.

        `dataclasses.replace(common, **own_part)` is this one again. All that is large is in `common`.
        """
        fields = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: value for name, value in fields if _differ(value, getattr(common, name))}

    @property
    def is_chief(self) -> bool:
        """Whether this task writes checkpoints and summaries."""
        return self.task == chief_of(task_type for task_type, _ in self.cluster_spec.jobs)


def _differ(value: Any, other: Any) -> bool:
    return value is not other and bool(value != other)


_TYPES_IN_ORDER = (TaskType.CHIEF, TaskType.WORKER, TaskType.PS)


def cluster_spec(strategy: Strategy, addresses: Mapping[TaskId, str]) -> ClusterSpec:
    """Returns who is in TensorFlow's cluster; nobody under a single-host strategy.

    An evaluator never is: it trains nothing and no collective may wait for it. A ps in the spec of
    MultiWorkerMirrored would be made the leader of the coordination service (multi_worker_util.py).

    Args:
      addresses: `host:port` of each task, IPv6 hosts in brackets.
    """
    if strategy.is_single_host:
        return ClusterSpec()
    types = _TYPES_IN_ORDER if strategy is Strategy.PARAMETER_SERVER else (TaskType.WORKER,)
    in_order = sorted(addresses, key=lambda task: task.index)
    by_type = {
        task_type: tuple(addresses[task] for task in in_order if task.task_type is task_type)
        for task_type in types
    }
    return ClusterSpec(jobs=tuple((task_type, found) for task_type, found in by_type.items() if found))


def placeholder_addresses(plan: Plan) -> dict[TaskId, str]:
    """Returns `worker-0:0` and the like, for a plan whose tasks have no address yet."""
    return {task: f"{task.path_name}:0" for task in plan.tasks}


def tf_config(spec: ClusterSpec, task: TaskId) -> str | None:
    """Returns the task's TF_CONFIG as JSON; None for a task that must have none.

    That is one of a single-host strategy, and a data worker. An evaluator's names the others' cluster,
    where it is not listed itself.
    """
    if not spec.jobs or task.task_type is TaskType.DATA_WORKER:
        return None
    own = {"type": task.task_type.value, "index": task.index}
    return json.dumps({"cluster": spec.as_dict(), "task": own})


def make_assignments(
    plan: Plan,
    addresses: Mapping[TaskId, str],
    *,
    attempt: int,
    run_uri: str,
    role_hosts: Mapping[str, str] = MappingProxyType({}),
    fenced_in: tuple[str, ...] | None = None,
) -> dict[TaskId, TaskAssignment]:
    """Returns what each task of an attempt is told before it may import TensorFlow.

    Args:
      addresses: Of all tasks, or of those that have come so far, where workers come and go.
      fenced_in: IP addresses of the only hosts that may reach the tasks that listen; None for all.
    """
    spec = cluster_spec(plan.strategy, addresses)
    num_tasks = Counter(task.task_type for task in plan.tasks)
    listening = {TaskType.DATA_WORKER, *(task_type for task_type, _ in spec.jobs)}
    worker = TaskId(task_type=TaskType.WORKER, index=0)  # every plan has one
    dispatcher = TaskId(task_type=TaskType.DATA_WORKER, index=0)
    is_tpu = plan.strategy is Strategy.TPU
    common: dict[str, Any] = {
        "job": plan.job,
        "strategy": plan.strategy,
        "keras": plan.keras,
        "cluster_spec": spec,
        "attempt": attempt,
        "run_uri": run_uri,
        "role_hosts": dict(role_hosts),
        "num_workers": plan.num_workers,
        "num_slots": plan.num_slots,
        "num_ps": num_tasks[TaskType.PS],
        "gpus_per_worker": plan.resources_of(worker).num_gpus,
        "data_service": addresses.get(dispatcher),
        "devices": plan.devices,
        "shares": shares_of(plan, addresses),
        "has_default_strategy": plan.has_default_strategy,
        "has_own_loop": plan.has_own_loop,
        # "local" is TPUClusterResolver's word for the chips of the task's own host.
        "tpu_name": (plan.inventory.tpu_name or "local") if is_tpu else None,
    }
    return {
        task: TaskAssignment(
            task=task,
            num_cpus=plan.resources_of(task).num_cpus,
            num_gpus=plan.resources_of(task).num_gpus,
            address=addresses[task] if task.task_type in listening else None,
            fenced_in=fenced_in if task.task_type in listening else None,
            **common,
        )
        for task in plan.tasks
        if task in addresses
    }


Changes = dict[str, str | None]
"""Variable to value; None removes it."""


def apply_changes(changes: Changes, environ: MutableMapping[str, str]) -> None:
    """Sets the variables, and removes those that have no value any more."""
    for name, value in changes.items():
        environ.pop(name, None) if value is None else environ.update({name: value})


def static_environment(
    *,
    keras: KerasFlavour,
    num_cpus: float,
    num_gpus: int,
    num_threads: int | None = None,
    tpu_name: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str],
) -> Changes:
    """Returns what is known before the tasks' addresses are, so that TensorFlow's import need not wait.

    Args:
      keras: The plan's choice, never AUTO.
      num_cpus: Logical CPUs of the task; fractions round down, to at least 1 thread.
      num_threads: Threads of TensorFlow; None takes those of `num_cpus`.
      num_gpus: 0 hides every GPU; otherwise Ray has set CUDA_VISIBLE_DEVICES.
      given: The job's own variables (`env`), which come before raydist's.
      environ: The task's own environment, as it is before.
    """
    num_threads = num_threads or max(1, int(num_cpus))
    changes: Changes = {
        # Explicit also for Keras 3: a value left over from `ray start` would choose the other one.
        "TF_USE_LEGACY_KERAS": "1" if keras is KerasFlavour.LEGACY else "0",
        "KERAS_BACKEND": "tensorflow",
        # TensorFlow sizes its pools to all cores of the host (tensorflow-notes.md#threads-and-bits).
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
    num_gpus: int = 0,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    python_folder: str,
) -> dict[str, str]:
    """Returns the whole environment of an extra role's command.

    Args:
      num_gpus: As for `static_environment`.
      given: The job's own variables (`env`).
      environ: That of the process which starts it.
      python_folder: Where the tasks' Python is, which `python` in a command is to be.
    """
    found = {name: text for name, text in environ.items() if name != "TF_CONFIG"}
    # Without one it would take the memory of one that a worker uses.
    found |= {**({} if num_gpus else {"CUDA_VISIBLE_DEVICES": ""}), **given}
    found["PATH"] = f"{python_folder}:{found.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    return found | {"RAYDIST_RUN": run, "RAYDIST_ROLE": role, "RAYDIST_INDEX": str(index)}
