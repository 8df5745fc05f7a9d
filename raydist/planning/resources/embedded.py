"""What an embedded Ray is started with beside CPUs: memory, and resources that are only names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from raydist.planning.inventory import Inventory
from raydist.spec.job import JobSpec
from raydist.spec.tasks import ACCELERATOR_TYPE, AnyRole

_PLENTY = 1e9


def with_custom_resources(inventory: Inventory, job: JobSpec) -> Inventory:
    """Returns the inventory, for an embedded Ray with as much as is asked for of the cluster's own resources.

    They are names that `ray start --resources` gave to hosts, and say nothing of this machine. So a job runs
    here as it does there.
    """
    if not inventory.is_embedded:
        return inventory
    asked = (
        *(job.resources_per_worker, job.resources_per_ps, job.resources_per_chief),
        *(job.resources_per_evaluator, job.resources_per_data_worker),
        *(dict(role.resources.custom) for role in job.roles.values()),
    )
    names = {name for each in asked for name in each if not name.startswith(ACCELERATOR_TYPE)}
    hosts = tuple(
        dataclasses.replace(host, custom={**host.custom, **dict.fromkeys(names, _PLENTY)})
        for host in inventory.hosts
    )
    return dataclasses.replace(inventory, hosts=hosts)


def embedded_resources(roles: Sequence[AnyRole], inventory: Inventory) -> dict[str, float]:
    """Returns what an embedded Ray has to be told of memory and custom resources; empty for any other."""
    if not inventory.is_embedded:
        return {}
    needed: dict[str, float] = {}
    for role in roles:
        for name, amount in role.resources.custom:
            needed[name] = needed.get(name, 0.0) + amount * role.num_tasks
    if any(role.resources.memory_bytes for role in roles):
        needed["memory"] = float(inventory.hosts[0].memory_bytes)
    # Ray takes parts of 1, or whole numbers.
    return {name: amount if amount <= 1 else math.ceil(amount) for name, amount in needed.items()}
