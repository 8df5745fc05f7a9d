"""How many workers an attempt of an elastic run has, and which hosts it leaves alone."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping

from raydist.planning.capacity import fits
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.planning.roles import with_workers
from raydist.spec.tasks import TaskType


def resized(plan: Plan, num_workers: int) -> Plan:
    """Returns the plan with that many workers."""
    return dataclasses.replace(plan, roles=with_workers(plan.roles, num_workers))


def fitted(plan: Plan, free: Inventory) -> Plan:
    """Returns the plan with as many workers as `free` has room for, in the range that was asked for.

    Where it has no room for the fewest, these are what is waited for. Hosts that the plan avoids count as
    full.
    """
    workers, free = plan.job.workers, _without_avoided(plan, free)
    more = range(workers.minimum + 1, workers.maximum + 1)
    extras = plan.job.roles.values()
    num_more = bisect.bisect(
        more, False, key=lambda num: not fits(free, (*with_workers(plan.roles, num), *extras))
    )
    return resized(plan, workers.minimum + num_more)


def room_beside(plan: Plan, free: Inventory) -> int:
    """Returns how many workers there can be, those of `plan` included, which have their room already.

    Hosts that the plan avoids count as full.
    """
    (role,) = (role for role in plan.roles if role.task_type is TaskType.WORKER)
    free = _without_avoided(plan, free)
    have, most = plan.num_workers, plan.job.workers.maximum
    more = range(1, most - have + 1)
    return have + bisect.bisect(
        more, False, key=lambda num: not fits(free, [dataclasses.replace(role, num_tasks=num)])
    )


def _without_avoided(plan: Plan, inventory: Inventory) -> Inventory:
    hosts = tuple(host for host in inventory.hosts if host.node_id not in plan.avoid)
    return dataclasses.replace(inventory, hosts=hosts)


def avoiding(plan: Plan, inventory: Inventory, hosts: frozenset[str]) -> Plan:
    """Returns the plan that leaves the hosts of these addresses alone, unless the others are too few.

    For an elastic run they are too few if they have no room for its fewest workers.
    """
    others = tuple(host for host in inventory.hosts if host.name not in hosts)
    fewest = resized(plan, plan.job.workers.minimum) if plan.is_elastic else plan
    if not hosts or not fits(dataclasses.replace(inventory, hosts=others), fewest.all_roles):
        return dataclasses.replace(plan, avoid=())
    avoided = (host.node_id for host in inventory.hosts if host.name in hosts)
    return dataclasses.replace(plan, avoid=tuple(node_id for node_id in avoided if node_id is not None))


def avoiding_unfit(
    plan: Plan, inventory: Inventory, hosts: frozenset[str], *, problems: Mapping[str, str]
) -> Plan:
    """Returns the plan that leaves the unfit hosts alone too where the others have room, and says so.

    Args:
      hosts: As for `avoiding`.
      problems: What is wrong with each unfit host, by its address.
    """
    without = avoiding(plan, inventory, hosts | problems.keys())
    if without.avoid:
        uses = tuple(
            f"does without host {host}, which failed lately and still has a problem ({problem})"
            for host, problem in problems.items()
        )
        return dataclasses.replace(without, uses_of_unfit_hosts=uses)
    uses = tuple(
        f"may use host {host}, as the others have no room, although it failed lately and still has "
        f"a problem ({problem})"
        for host, problem in problems.items()
    )
    return dataclasses.replace(avoiding(plan, inventory, hosts), uses_of_unfit_hosts=uses)
