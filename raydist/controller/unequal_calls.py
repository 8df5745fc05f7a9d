"""Whether workers wait for each other in calls that not all of them make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raydist.controller.attempt import Attempt
from raydist.controller.root_cause import RootCause
from raydist.outcome.status import CallState, Collective, FailureKind, TaskFailure, TaskStatus
from raydist.spec.tasks import TaskId


class _Standing(NamedTuple):
    """A worker that has stood in a collective for a while, or has left the train function."""

    task: TaskId
    collective: Collective

    @property
    def has_left(self) -> bool:
        return self.collective.state is CallState.LEFT

    @property
    def does(self) -> tuple[bool, str | None]:
        """What it has begun: workers that have begun other things under one number wait for ever."""
        return self.has_left, self.collective.call

    def __str__(self) -> str:
        if self.has_left:
            return f"{self.task} has returned from the train function"
        call = self.collective.call
        what = "waits for the other workers" if call is None else f"calls {call}"
        return f"{self.task} {what} in {self.collective.where}"


def unequal_calls(attempt: Attempt, news: Iterable[TaskStatus]) -> RootCause | None:
    """Returns the cause if a worker waits for others that have begun something else, or have left.

    Args:
      news: The newest status of each task that has sent one.
    """
    if not any(True for _ in _standing(news)):
        return None
    statuses = (attempt.statuses[task] for task in attempt.needed if task in attempt.statuses)
    first: dict[int, _Standing] = {}
    for one in _standing(statuses):
        other = first.setdefault(one.collective.number, one)
        if other.does != one.does:
            return _cause(attempt, *sorted((one, other), key=lambda each: (each.has_left, each.task)))
    return None


def _standing(statuses: Iterable[TaskStatus]) -> Iterator[_Standing]:
    for status in statuses:
        one = status.collective
        if one is None:
            continue
        waits = one.where is not None and (one.state is CallState.MEETING or one.is_running)
        if waits or one.state is CallState.LEFT:
            yield _Standing(status.task, one)


def _cause(attempt: Attempt, one: _Standing, other: _Standing) -> RootCause:
    calls = [each.collective.call for each in (one, other) if each.collective.call is not None]
    rule = "make the same calls, in one order" if len(calls) > 1 else "make this call, or none"
    failure = TaskFailure(
        task=one.task,
        kind=FailureKind.UNEQUAL,
        error_type="UnequalCalls",
        message=f"{one}, {other}: all workers {rule if calls else 'take part, or none'}",
        step=attempt.step,
    )
    return RootCause(failure=failure, collateral=attempt.unfinished_besides(one.task))
