"""A plan as plain values: what `plan --json` prints, and what run.json keeps."""

from __future__ import annotations

import enum
from typing import Any

from raydist.planning.batch_sizes import batch_sizes_of
from raydist.planning.plan import Plan
from raydist.planning.tf_config import cluster_spec, placeholder_addresses, tf_config
from raydist.spec.job import JobSpec
from raydist.spec.settings.options import OPTIONS
from raydist.spec.tasks import TaskId


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Returns the plan as `plan --json` prints it."""
    sizes = batch_sizes_of(plan)
    return {
        "run": plan.job.name,
        "job": str(plan.job.entry_point),
        "params": dict(plan.job.params),
        "args": list(plan.job.args),
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
                "gpus": role.resources.num_gpus,
                "tpus": role.resources.num_tpus,
            }
            for role in plan.roles
        ],
        "devices": plan.devices,
        "batch": None if sizes is None else sizes.as_dict(),
        "learning_rate": sizes.rate.scaled if sizes and sizes.rate else None,
        "embedded_cpus": plan.embedded_cpus,
        "storage": plan.job.storage,
        "tasks": [{"task": str(task), "tf_config": config} for task, config in placeholder_tf_configs(plan)],
        "notes": list(plan.notes),
    }


def describe_job(job: JobSpec) -> dict[str, Any]:
    """Returns the job as run.json keeps it: each option as it would be written, and what to run."""
    entry_point = job.entry_point
    return {
        **{option.name: _as_written(getattr(job, option.name)) for option in OPTIONS},
        "params": dict(job.params),
        "entry_point": {
            "file": entry_point.file,
            "module": entry_point.module,
            "function": entry_point.function,
        },
    }


def _as_written(value: Any) -> Any:
    """Returns an option's value as JSON has it, in the text that its parser reads where it is no number."""
    if isinstance(value, enum.Enum):
        return value.value
    return value if value is None or isinstance(value, bool | int | float | tuple) else str(value)


def placeholder_tf_configs(plan: Plan) -> list[tuple[TaskId, str | None]]:
    """Returns each task's TF_CONFIG with addresses such as `worker-0:0`; None for one that gets none."""
    spec = cluster_spec(plan.strategy, placeholder_addresses(plan))
    return [(task, tf_config(spec, task)) for task in plan.tasks]
