"""Which tasks a run is made of, and what each of them asks of its host."""

from __future__ import annotations

import bisect
import dataclasses

from raydist.planning.capacity import describe_roles, fits
from raydist.planning.inventory import Inventory
from raydist.planning.strategy import most_gpus
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.tasks import ACCELERATOR_SHARE, ACCELERATOR_TYPE, AnyRole, Resources, Role, TaskId, TaskType
from raydist.spec.text import listed

Roles = tuple[Role, ...]


def make_roles(job: JobSpec, strategy: Strategy, inventory: Inventory, notes: list[str]) -> Roles:
    """Returns chief, workers, ps and evaluator, in this order.

    Chief and ps are of parameter_server alone; data workers come last.

    Args:
      job: What `choose_strategy` left of it.
      notes: Gets a sentence for each thing that is chosen here.
    """
    workers = Role(
        task_type=TaskType.WORKER,
        num_tasks=job.workers.minimum,
        resources=dataclasses.replace(
            _resources(job, TaskType.WORKER),
            num_gpus=_gpus_per_worker(job, strategy, inventory, notes),
            num_tpus=_tpu_chips(strategy, inventory),
        ),
    )
    roles = [workers]
    if strategy is Strategy.PARAMETER_SERVER:
        # No GPU for them: variables live in a ps's memory, and the chief would keep from a worker what it
        # computes with.
        roles = [
            Role(task_type=TaskType.CHIEF, resources=_resources(job, TaskType.CHIEF)),
            workers,
            Role(task_type=TaskType.PS, num_tasks=job.ps, resources=_resources(job, TaskType.PS)),
        ]
    if job.evaluator:
        num_gpus = job.resources_of(TaskType.EVALUATOR).gpus or 0
        resources = dataclasses.replace(_resources(job, TaskType.EVALUATOR), num_gpus=num_gpus)
        roles.append(Role(task_type=TaskType.EVALUATOR, resources=resources))
    if job.data_workers > 0:
        resources = _resources(job, TaskType.DATA_WORKER)
        roles.append(Role(task_type=TaskType.DATA_WORKER, num_tasks=job.data_workers, resources=resources))
    return _with_most_workers(tuple(roles), job, inventory, notes)


def _resources(job: JobSpec, task_type: TaskType) -> Resources:
    """Returns what the job asks for, for each task of a role; GPUs and TPUs, which are planned, left out."""
    asked = job.resources_of(task_type)
    custom = dict(asked.resources)
    if task_type is TaskType.WORKER and job.accelerator_type is not None:
        custom[f"{ACCELERATOR_TYPE}{job.accelerator_type}"] = ACCELERATOR_SHARE
    labels = {key: wanted for key, wanted in job.label_selector.items() if ":" not in key}
    for key, wanted in job.label_selector.items():
        named, _, label = key.rpartition(":")
        if named == task_type.value:
            labels[label] = wanted
    return Resources(
        num_cpus=asked.cpus,
        memory_bytes=asked.memory or 0,
        custom=tuple(sorted(custom.items())),
        labels=tuple(sorted(labels.items())),
    )


def _with_most_workers(roles: Roles, job: JobSpec, inventory: Inventory, notes: list[str]) -> Roles:
    """Takes the most workers of the range that fit without sharing cores, at least the range's minimum."""
    num_workers = most_workers(roles, job, inventory)
    made = with_workers(roles, num_workers)
    if num_workers < job.workers.maximum:
        notes.append(f"{num_workers} of {job.workers} workers: {inventory.source} has no room for more")
    asked: tuple[AnyRole, ...] = (*made, *job.roles.values())
    if inventory.can_grow and not fits(inventory, asked):
        notes.append(
            f"{inventory.source} has no room for {describe_roles(asked)} yet: waits for its autoscaler"
        )
    return made


def most_workers(roles: Roles, job: JobSpec, inventory: Inventory) -> int:
    """Returns how many workers of the job's range there is room for; its minimum also where there is none."""
    workers, extras = job.workers, job.roles.values()
    more = range(workers.minimum + 1, workers.maximum + 1)
    return workers.minimum + bisect.bisect(
        more, False, key=lambda num: not fits(inventory, (*with_workers(roles, num), *extras))
    )


def with_workers(roles: Roles, num_workers: int) -> Roles:
    """Returns `roles` with another number of workers."""
    return tuple(
        dataclasses.replace(role, num_tasks=num_workers) if role.task_type is TaskType.WORKER else role
        for role in roles
    )


def outlives_death_of(task: TaskId, strategy: Strategy) -> bool:
    """Whether training continues without that task until a new process takes its place."""
    is_replaceable_worker = strategy is Strategy.PARAMETER_SERVER and task.task_type is TaskType.WORKER
    return is_replaceable_worker or task.task_type is TaskType.EVALUATOR


def _gpus_per_worker(job: JobSpec, strategy: Strategy, inventory: Inventory, notes: list[str]) -> int:
    asked = job.resources_of(TaskType.WORKER).gpus
    match strategy:
        case Strategy.TPU:
            return 0
        case Strategy.ONE_DEVICE:
            if (asked or 0) > 1:
                notes.append(f"worker.gpus {asked} becomes 1: one_device uses one")
            return min(1, most_gpus(job, inventory) if asked is None else asked)
        case Strategy.MULTI_WORKER_MIRRORED | Strategy.PARAMETER_SERVER:
            return _gpus_of_each(job, inventory, notes) if asked is None else asked
        case _:
            return most_gpus(job, inventory) if asked is None else asked


def _gpus_of_each(job: JobSpec, inventory: Inventory, notes: list[str]) -> int:
    """One GPU for each worker or for none, as all workers must have the same number."""
    of_evaluator = (job.resources_of(TaskType.EVALUATOR).gpus or 0) if job.evaluator else 0
    of_extras = sum(role.num_tasks * role.resources.num_gpus for role in job.roles.values())
    num_gpus, minimum = max(0, inventory.num_gpus - of_evaluator - of_extras), job.workers.minimum
    takers = ["the evaluator"] if of_evaluator else []
    takers += [name for name, role in job.roles.items() if role.resources.num_gpus]
    beside = f" beside those of {listed(takers)}" if takers else ""
    if 0 < inventory.num_gpus <= of_evaluator:
        workers = f"--workers {inventory.num_gpus} " if inventory.num_gpus < minimum else ""
        notes.append(
            f"no worker uses a GPU: {inventory.source} has {inventory.num_gpus}, for the evaluator; "
            f"{workers}--gpus evaluator=0 would train on them"
        )
    elif inventory.num_gpus and not num_gpus:
        notes.append(
            f"no worker uses a GPU: {inventory.source} has {inventory.num_gpus}, for {listed(takers)}"
        )
    if 0 < num_gpus < minimum:
        notes.append(
            f"no worker uses a GPU: {minimum} workers need one each, and {inventory.source} has "
            f"{num_gpus}{beside}; --workers {num_gpus} would use them"
        )
    if num_gpus > job.workers.maximum:
        notes.append(f"each worker uses 1 of {num_gpus} GPUs{beside}; --gpus worker=N gives it more")
    return 1 if num_gpus >= minimum else 0


def _tpu_chips(strategy: Strategy, inventory: Inventory) -> float:
    """All chips of a host; 0 for a TPU that is reached by its name alone."""
    if strategy is not Strategy.TPU:
        return 0.0
    return max((host.num_tpus for host in inventory.hosts), default=0.0)
