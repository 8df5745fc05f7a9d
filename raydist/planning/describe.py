"""A plan as plain values, for `plan --json` and run.json, with what TensorFlow's own cluster costs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydist.errors import SpecError
from raydist.planning.assignment import cluster_spec, placeholder_addresses, tf_config
from raydist.planning.batch_sizes import batch_sizes_of
from raydist.planning.capacity import LOGICAL_CPUS_PER_CORE, num_fitting, why_not
from raydist.planning.plan import Plan
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.params import keep_params
from raydist.spec.quantities import size_text
from raydist.spec.secrecy import REDACTED, without_secrets
from raydist.spec.settings.options import OPTIONS
from raydist.spec.tasks import ClusterSpec, TaskId, TaskType

# Linux's MAX_ARG_STRLEN: a longer variable keeps a process from starting others.
_MAX_VARIABLE_BYTES = 128 * 1024
# As long as most addresses get: IPv4, and a port of five digits.
_ADDRESS = "10.100.100.100:40000"


@dataclass(frozen=True, kw_only=True)
class ClusterCost:
    """What TensorFlow's own cluster of a plan's tasks costs, for any model.

    Attributes:
      tf_config_bytes: Of one task's TF_CONFIG, which has the addresses of all.
      ring_steps: Messages that each worker sends one after the other in an all-reduce of TensorFlow's CPU
        ring: 2 (N - 1) for N workers. None where none is made.
      most_connections: Of the task that has the most, to other tasks.
      connections: Of all tasks.
      num_ps_hosts: On how many hosts parameter servers find themselves; None without any.
    """

    tf_config_bytes: int
    ring_steps: int | None
    most_connections: int
    connections: int
    num_ps_hosts: int | None

    def sentences(self) -> list[str]:
        """Returns a sentence for each cost."""
        said = [f"each task's TF_CONFIG has {size_text(self.tf_config_bytes)}"]
        if self.tf_config_bytes > _MAX_VARIABLE_BYTES:
            said[0] += (
                f", and Linux limits a variable to {size_text(_MAX_VARIABLE_BYTES)}: a task that starts "
                "other processes has to remove it from their environment"
            )
        if self.ring_steps is not None:
            said.append(f"an all-reduce on CPUs takes {self.ring_steps} messages one after the other")
        said.append(
            f"{self.connections} connections between tasks, {self.most_connections} of them of one task"
        )
        if self.num_ps_hosts is not None:
            said.append(f"parameter servers on {self.num_ps_hosts} hosts")
        return said


def cluster_cost(plan: Plan) -> ClusterCost | None:
    """Returns what TensorFlow's cluster costs; None where the plan has none, or one of one task.

    Connections as found on runs of TensorFlow 2.21 with 4 workers, and with 2 workers and 2 ps. A worker of
    multi_worker_mirrored has one to worker/0, which leads, to the one before it in the ring, and to its
    parent in the tree that first values come by. Under parameter_server the chief has one to each worker and
    ps, a worker and a ps have one to each other in both directions, and ps/0 has one to each other ps.
    """
    spec = cluster_spec(plan.strategy, dict.fromkeys(plan.tasks, _ADDRESS))
    if sum(len(addresses) for _, addresses in spec.jobs) < 2:
        return None
    config = tf_config(spec, plan.tasks[0]) or ""
    sizes = {task_type: len(addresses) for task_type, addresses in spec.jobs}
    workers, ps = sizes.get(TaskType.WORKER, 0), sizes.get(TaskType.PS, 0)
    if plan.strategy is Strategy.PARAMETER_SERVER:
        return ClusterCost(
            tf_config_bytes=len(config),
            ring_steps=None,
            most_connections=max(workers + ps, 2 * workers + ps, 2 * ps + 1),
            connections=workers + ps + 2 * workers * ps + ps - 1,
            num_ps_hosts=min(ps, len(plan.inventory.hosts)),
        )
    peers = {(0, workers - 1)} if workers > 1 else set()
    for index in range(1, workers):
        peers.update((index, peer) for peer in (0, index - 1, (index - 1) // 2))
    return ClusterCost(
        tf_config_bytes=len(config),
        ring_steps=2 * (workers - 1),
        most_connections=sum(0 in pair for pair in peers),
        connections=len(peers),
        num_ps_hosts=None,
    )


# Each TF_CONFIG has all addresses: those of 1,000 tasks would take 14 MB.
MAX_LISTED_TASKS = 16


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Returns the plan as `plan --json` prints it; without each task's TF_CONFIG if there are many tasks."""
    sizes = batch_sizes_of(plan)
    listed = placeholder_tf_configs(plan) if lists_tasks(plan) else [(task, None) for task in plan.tasks]
    return {
        "run": plan.job.name,
        "job": str(plan.job.entry_point),
        **keep_params(plan.job.params),
        "args": list(plan.job.args),
        "env": without_secrets(plan.job.env),
        "runtime_env": sorted(plan.job.runtime_env or ()),
        "inventory": plan.inventory.source,
        "strategy": plan.strategy.value,
        "reason": plan.reason,
        "keras": plan.keras.value,
        "keras_reason": plan.keras_reason,
        "roles": [
            {
                "task_type": role.task_type.value,
                "num_tasks": role.num_tasks,
                "cpus": role.resources.num_cpus,
                "threads": plan.threads_of(role),
                "gpus": role.resources.num_gpus,
                "tpus": role.resources.num_tpus,
                "memory_bytes": role.resources.memory_bytes,
                "resources": dict(role.resources.custom),
                "labels": dict(role.resources.labels),
            }
            for role in plan.roles
        ],
        "extra_roles": [{"name": role.name, **role.as_written()} for role in plan.job.roles.values()],
        "hosts": describe_hosts(plan),
        "devices": plan.devices,
        "default_strategy": plan.has_default_strategy,
        "batch": None if sizes is None else sizes.as_dict(),
        "learning_rate": sizes.rate.scaled if sizes and sizes.rate else None,
        "embedded_cpus": plan.embedded_cpus,
        "storage": plan.job.storage,
        "cluster": placeholder_cluster(plan).as_dict(),
        "cluster_cost": None if (cost := cluster_cost(plan)) is None else dataclasses.asdict(cost),
        "tasks": [{"task": str(task), "tf_config": config} for task, config in listed],
        "notes": list(plan.notes),
    }


def describe_hosts(plan: Plan) -> list[dict[str, Any]]:
    """Returns what each host, of at most 16, could hold of each role's tasks alone, and what it lacks."""
    cpus_per_core = LOGICAL_CPUS_PER_CORE if plan.inventory.is_embedded else 1
    return [
        {
            "host": host.name,
            "roles": {
                role.name: {
                    "fits": min(
                        role.num_tasks, num_fitting(host, role.resources, cpus_per_core=cpus_per_core)
                    ),
                    "lacks": why_not(host, role.resources, cpus_per_core=cpus_per_core),
                }
                for role in plan.all_roles
            },
        }
        for host in plan.inventory.hosts[:MAX_LISTED_TASKS]
    ]


def describe_job(job: JobSpec) -> dict[str, Any]:
    """Returns the job as run.json keeps it: each option as it would be written, and what to run."""
    entry_point = job.entry_point
    return {
        **{option.name: _as_written(getattr(job, option.name)) for option in OPTIONS},
        # Such a command often has the address of a chat's webhook, which is a secret.
        "on_end": None if job.on_end is None else REDACTED,
        "env": without_secrets(job.env),
        "resources": {one.value: dataclasses.asdict(job.resources_of(one)) for one in TaskType},
        "roles": {name: role.as_written() for name, role in job.roles.items()},
        **keep_params(job.params),
        "entry_point": {
            "file": entry_point.file,
            "module": entry_point.module,
            "function": entry_point.function,
        },
    }


def _as_written(value: Any) -> Any:
    """Returns an option's value for JSON: a number, or the text that its parser reads."""
    if isinstance(value, enum.Enum):
        return value.value
    return value if value is None or isinstance(value, bool | int | float | tuple | Mapping) else str(value)


def lists_tasks(plan: Plan) -> bool:
    """Whether the plan has so few tasks that each one's TF_CONFIG is shown."""
    return len(plan.tasks) <= MAX_LISTED_TASKS


def placeholder_cluster(plan: Plan) -> ClusterSpec:
    """Returns who is in TensorFlow's cluster, with addresses such as `worker-0:0`."""
    return cluster_spec(plan.strategy, placeholder_addresses(plan))


def placeholder_tf_configs(plan: Plan) -> list[tuple[TaskId, str | None]]:
    """Returns each task's TF_CONFIG with addresses such as `worker-0:0`; None for one that gets none."""
    spec = placeholder_cluster(plan)
    return [(task, tf_config(spec, task)) for task in plan.tasks]


def placeholder_tf_config(plan: Plan, task: TaskId) -> str | None:
    """Returns one task's TF_CONFIG; raises SpecError if the plan has no such task."""
    if task not in plan.tasks:
        roles = ", ".join(str(role) for role in plan.roles)
        raise SpecError(f"the plan has no task {task}; it has {roles}")
    return tf_config(placeholder_cluster(plan), task)
