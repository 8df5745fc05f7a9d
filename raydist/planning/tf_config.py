"""From the tasks' addresses to TensorFlow's cluster spec, each task's TF_CONFIG and its assignment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raydist.planning.assignment import TaskAssignment
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import ClusterSpec, TaskId, TaskType

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
    in_order = _in_order(addresses)
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
        "num_workers": num_tasks[TaskType.WORKER],
        "num_ps": num_tasks[TaskType.PS],
        "gpus_per_worker": plan.resources_of(worker).num_gpus,
        "data_service": addresses.get(dispatcher),
        "devices": plan.devices,
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
    }


def _in_order(addresses: Mapping[TaskId, str]) -> list[TaskId]:
    return sorted(addresses, key=lambda task: task.index)
