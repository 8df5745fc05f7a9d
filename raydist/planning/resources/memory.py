"""How much memory the tasks of a new attempt ask for, once some were killed because theirs did not do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raydist.errors import SpecError
from raydist.planning.capacity import fits
from raydist.planning.elastic import resized
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import JobSpec
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import Role, TaskType


def check_memory_retry(job: JobSpec) -> None:
    """Raises SpecError where more memory is to be asked for than none."""
    asked = (job.memory_per_worker, job.memory_per_ps, job.memory_per_chief, job.memory_per_evaluator)
    if job.memory_retry is not None and not any((*asked, job.memory_per_data_worker)):
        raise SpecError(
            f"memory_retry is {job.memory_retry:g}x, but no task reserves memory that could grow; add "
            "--memory-per-worker SIZE, such as 8GiB"
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
