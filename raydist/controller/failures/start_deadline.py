"""What to say when an attempt is not training by its start deadline."""

from __future__ import annotations

from raydist.controller.attempt.attempt import Attempt, name_tasks
from raydist.controller.failures.root_cause import RootCause
from raydist.errors import StartTimeoutError
from raydist.planning.plan import Plan
from raydist.spec.status import FailureKind, TaskFailure, TaskState


def unplaced_error(plan: Plan, attempt: Attempt) -> StartTimeoutError:
    """Returns the error for tasks that the cluster had no room for; names them and what they ask for."""
    needed = attempt.needed
    waiting = [task for task in needed if attempt.state_of(task) is TaskState.PENDING] or needed
    resources = [plan.resources_of(task) for task in waiting]
    asked = _amounts(
        sum(resource.num_cpus for resource in resources),
        sum(resource.num_gpus for resource in resources),
        sum(resource.num_tpus for resource in resources),
    )
    total = _amounts(
        plan.inventory.num_cpus,
        plan.inventory.num_gpus,
        sum(host.num_tpus for host in plan.inventory.hosts),
    )
    return StartTimeoutError(
        f"no room for {name_tasks(waiting)} within {plan.job.start_timeout:g} s (--start-timeout): "
        f"waited for {asked}; {plan.inventory.source} had {total} in all. "
        "Free some, ask for less, or wait longer with --start-timeout",
        attempt=attempt.number,
    )


def unready_cause(plan: Plan, attempt: Attempt) -> RootCause:
    """Returns the cause for tasks that have a process but do not train yet; names their addresses."""
    missing = attempt.furthest_behind
    named = ", ".join(map(attempt.describe, missing))
    failure = TaskFailure(
        task=missing[0],
        kind=FailureKind.START,
        error_type=StartTimeoutError.__name__,
        message=f"not training within {plan.job.start_timeout:g} s (--start-timeout): {named}",
    )
    return RootCause(failure=failure, collateral=attempt.unfinished_besides(failure.task))


def _amounts(num_cpus: float, num_gpus: float, num_tpus: float) -> str:
    amounts = [f"{num_cpus:g} CPUs"]
    if num_gpus:
        amounts.append(f"{num_gpus:g} GPUs")
    if num_tpus:
        amounts.append(f"{num_tpus:g} TPU chips")
    return " and ".join(amounts)
