"""Fits the plan of a new attempt to the hosts: fewer workers, more memory, room for Ray Data's own tasks."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

from raydist.errors import ClusterError, SpecError, UnsupportedError
from raydist.planning.capacity import describe_roles, fits
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.planning.roles import most_workers, with_workers
from raydist.planning.threads import reserved_threads
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import AnyRole, Role, TaskType


def resized(plan: Plan, num_workers: int) -> Plan:
    """Returns the plan with that many workers."""
    return dataclasses.replace(plan, roles=with_workers(plan.roles, num_workers + len(plan.given_up)))


def fitted(plan: Plan, free: Inventory) -> Plan:
    """Returns the plan with as many workers as `free` has room for, in the range that was asked for.

    Where it has no room for the fewest, these are what is waited for. Hosts that the plan avoids count as
    full.
    """
    return resized(plan, most_workers(plan.roles, plan.job, _without_avoided(plan, free)))


def room_beside(plan: Plan, free: Inventory, *, num_spare: int = 0) -> int:
    """Returns how many workers there can be, those of `plan` included, which have their room already.

    Hosts that the plan avoids count as full.

    Args:
      num_spare: For how many more the run has room besides `free`.
    """
    (role,) = (role for role in plan.roles if role.task_type is TaskType.WORKER)
    free = _without_avoided(plan, free)
    most = plan.job.workers.maximum - len(plan.given_up)
    have = min(plan.num_workers + num_spare, most)
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


def check_memory_retry(job: JobSpec) -> None:
    """Raises SpecError where more memory is to be asked for than none."""
    if job.memory_retry is not None and not any(job.resources_of(one).memory for one in TaskType):
        raise SpecError(
            f"memory_retry is {job.memory_retry:g}x, but no task reserves memory that could grow; add "
            "--memory worker=SIZE, such as worker=8GiB"
        )


def with_more_memory(plan: Plan, inventory: Inventory, out_of_memory: Sequence[TaskType]) -> Plan:
    """Returns the plan whose roles ask for `memory_retry` times the memory, for each attempt that it cost.

    Where the hosts have no room for that, it is once less, and so on. An elastic run's plan then has the
    fewest workers: what counts is that these have the memory, and `fitted` adds those that there is room for.

    Args:
      plan: That of the first attempt.
      inventory: What the hosts have, busy or free.
      out_of_memory: The roles that were short of memory, once for each attempt that was lost by it.
    """
    factor = plan.job.memory_retry
    if factor is None:
        return plan
    if plan.is_elastic:
        plan = resized(plan, plan.job.workers.minimum)
    roles = plan.roles
    for task_type in dict.fromkeys(out_of_memory):
        for power in range(out_of_memory.count(task_type), 0, -1):
            grown = tuple(
                _with_memory(role, factor**power) if role.task_type is task_type else role for role in roles
            )
            if fits(inventory, (*grown, *plan.job.roles.values())):
                roles = grown
                break
    return dataclasses.replace(plan, roles=roles)


def describe_growth(before: Plan, after: Plan, task_type: TaskType) -> str | None:
    """Returns what a new attempt asks for, as half a sentence, where that role was killed for memory.

    None for a role that asks for no memory.
    """
    had, has = (_memory_of(plan, task_type) for plan in (before, after))
    if has == 0:
        return None
    each = f"{write_bytes(has)} of memory for each {task_type.value}"
    if has == had:
        return f"asks for {each} as before: no host has room for more"
    return f"asks for {each} instead of {write_bytes(had)}"


def _with_memory(role: Role, factor: float) -> Role:
    memory_bytes = int(role.resources.memory_bytes * factor)
    return dataclasses.replace(role, resources=dataclasses.replace(role.resources, memory_bytes=memory_bytes))


def _memory_of(plan: Plan, task_type: TaskType) -> int:
    return next((role.resources.memory_bytes for role in plan.roles if role.task_type is task_type), 0)


# What one of Ray Data's tasks takes unless it is told otherwise. Without it nothing is ever read, and the
# workers wait for it until --stall-timeout.
_CPUS = 1.0


def with_data_room(plan: Plan) -> Plan:
    """Returns the plan of a run that is given datasets, with a CPU for them in an embedded Ray.

    Raises:
      UnsupportedError: The strategy's workers run no code of the user's that could ask for them.
      ClusterError: The tasks leave no CPU for Ray Data.
    """
    if plan.strategy is Strategy.PARAMETER_SERVER:
        raise UnsupportedError(
            "datasets are given, but under parameter_server no worker runs the train function that would ask "
            "for them; give ctx.fit a function that reads the files into a tf.data.Dataset, or use "
            "--strategy multi_worker_mirrored"
        )
    (workers,) = (role for role in plan.roles if role.task_type is TaskType.WORKER)
    # Ray Data's own tasks use the CPUs that are free.
    plan = dataclasses.replace(plan, worker_threads=reserved_threads(workers.resources))
    if plan.embedded_cpus is not None:
        return dataclasses.replace(plan, embedded_cpus=plan.embedded_cpus + int(_CPUS))
    inventory = plan.inventory
    if not inventory.can_grow and not fits(less_data_room(inventory, plan.all_roles), plan.all_roles):
        raise ClusterError(
            f"{describe_roles(plan.all_roles)} leave none of the {inventory.num_cpus:g} CPUs of "
            f"{inventory.source} to Ray Data, which needs 1 to read the datasets with; take less "
            "with --cpus or --workers, or give Ray more: ray.init(num_cpus=...), "
            "ray start --num-cpus=..."
        )
    return plan


def less_data_room(inventory: Inventory, roles: Sequence[AnyRole]) -> Inventory:
    """Returns what is left for tasks once Ray Data has its CPU: on a host where `roles` still fit, if any."""
    by_cpus = sorted(inventory.hosts, key=lambda host: host.num_cpus, reverse=True)
    left = [_less(inventory, host) for host in by_cpus if host.num_cpus >= _CPUS]
    none = dataclasses.replace(inventory, hosts=())
    return next((each for each in left if fits(each, roles)), left[0] if left else none)


def _less(inventory: Inventory, host: Host) -> Inventory:
    smaller = dataclasses.replace(host, num_cpus=host.num_cpus - _CPUS)
    return dataclasses.replace(
        inventory, hosts=tuple(smaller if each is host else each for each in inventory.hosts)
    )
