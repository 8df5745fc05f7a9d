"""How many threads TensorFlow has in each worker: those it reserves, and its share of the free CPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raydist.planning.capacity import num_fitting
from raydist.planning.inventory import Inventory
from raydist.planning.strategy import Origins
from raydist.spec.job import JobSpec
from raydist.spec.settings.resolution import Origin
from raydist.spec.settings.roles import amount_name
from raydist.spec.tasks import AnyRole, Resources, Role, TaskResources, TaskType

VARIABLE = "TF_NUM_INTRAOP_THREADS"


def reserved_threads(resources: Resources) -> int:
    """Returns a thread for each CPU that a task reserves, at least one."""
    return max(1, int(resources.num_cpus))


def threads_per_worker(job: JobSpec, origins: Origins, roles: Sequence[Role], inventory: Inventory) -> int:
    """Returns the threads of each worker, the same on all hosts and in all attempts.

    Ray packs tasks, so each host counts as having as many workers as fit, and all other tasks. With virtual
    replicas it is how many operations run at once: each has one thread.
    """
    (workers,) = (role for role in roles if role.task_type is TaskType.WORKER)
    reserved = reserved_threads(workers.resources)
    if job.env.get(VARIABLE, "").isdecimal():
        return int(job.env[VARIABLE])
    if not _takes_free_cpus(job, origins):
        return reserved
    others: list[AnyRole] = [role for role in roles if role is not workers]
    others += job.roles.values()
    needed = sum(role.num_tasks * role.resources.num_cpus for role in others)
    found = []
    for host in inventory.hosts:
        free = host.num_cpus if host.free_cpus is None else host.free_cpus
        most = job.workers.maximum
        if not inventory.is_embedded or host.free_cpus is not None:
            most = min(most, num_fitting(dataclasses.replace(host, num_cpus=free), workers.resources))
        if most:
            found.append(int((free - needed) / most))
    return max(reserved, min(found, default=0))


def _takes_free_cpus(job: JobSpec, origins: Origins) -> bool:
    # A run that is resumed has each option set.
    is_asked = origins.get(amount_name(TaskType.WORKER.value, "cpus"), Origin.BUILT_IN) is not Origin.BUILT_IN
    if is_asked and not (job.resume and job.resources_of(TaskType.WORKER).cpus == TaskResources.cpus):
        return False
    return job.study is None  # such runs share the hosts, or are compared
