"""The error when an attempt is not training by its start deadline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raydist.controller.attempt.attempt import Attempt, name_tasks
from raydist.controller.failures.root_cause import RootCause
from raydist.errors import StartTimeoutError
from raydist.planning.plan import Plan
from raydist.planning.resources.host_fit import describe_amount
from raydist.spec.status import FailureKind, TaskFailure, TaskState


def unplaced_error(plan: Plan, attempt: Attempt) -> StartTimeoutError:
    """Returns the error for tasks that the cluster had no room for; names them and what they ask for."""
    needed = attempt.needed
    waiting = [task for task in needed if attempt.state_of(task) is TaskState.PENDING] or needed
    resources = [plan.resources_of(task) for task in waiting]
    asked = _sums(each.amounts for each in resources)
    total = _sums(host.amounts for host in plan.inventory.hosts)
    labels = sorted({f"{label}={wanted}" for each in resources for label, wanted in each.labels})
    where = f" on hosts with {', '.join(labels)}" if labels else ""
    return StartTimeoutError(
        f"no room for {name_tasks(waiting)} within {plan.job.start_timeout:g} s (--start-timeout): "
        f"waited for {_listed(asked)}{where}; {plan.inventory.source} had "
        f"{_listed({name: total.get(name, 0.0) for name in asked})} in all. "
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


def _sums(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the sum of each resource; that of CPUs also where there are none."""
    sums = {"CPU": 0.0}
    for each in amounts:
        for name, amount in each.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _listed(amounts: Mapping[str, float]) -> str:
    shown = [f"{amounts['CPU']:g} CPUs"]
    shown += [describe_amount(name, amount) for name, amount in amounts.items() if name != "CPU"]
    return " and ".join(shown)
