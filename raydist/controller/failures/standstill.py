"""Whom an attempt waits for that makes no progress any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raydist.controller.attempt.attempt import Attempt, name_tasks
from raydist.controller.failures.root_cause import RootCause
from raydist.spec.status import CodePlace, FailureKind, TaskFailure
from raydist.spec.tasks import TaskId


def standstill_cause(attempt: Attempt, *, chief: TaskId, stall_timeout_s: float) -> RootCause:
    """Returns the cause: the task that is in code of its own while the others wait, if there is one."""
    places = _known_places(attempt)
    busy = [task for task, place in places.items() if not place.is_waiting]
    task = busy[0] if busy else chief
    place = places.get(task)
    said = _describe(places, busy)
    failure = TaskFailure(
        task=task,
        kind=FailureKind.STALLED,
        error_type="Stalled",
        message=f"no task has made progress after step {attempt.step} for {stall_timeout_s:g} s "
        f"(--stall-timeout){said and f': {said}'}; the stacks of all tasks are at the end of their logs",
        traceback=None if place is None else f"{task} (most recent call last):\n{place.stack}",
        step=attempt.step,
    )
    return RootCause(failure=failure, collateral=attempt.unfinished_besides(task))


def _known_places(attempt: Attempt) -> dict[TaskId, CodePlace]:
    """Returns where the tasks are that run code of the user's."""
    statuses = (attempt.statuses[task] for task in attempt.needed if task in attempt.statuses)
    return {status.task: status.place for status in statuses if status.place and status.place.where}


def _describe(places: Mapping[TaskId, CodePlace], busy: Sequence[TaskId]) -> str:
    """Returns `worker/1 is in bad.py:53 (on_epoch_end), the others wait for it`, of what is known."""
    if not busy:
        return ", ".join(
            f"{name_tasks(tasks)} {'waits' if len(tasks) == 1 else 'wait'} in {where}"
            for where, tasks in _by_place(places, list(places)).items()
        )
    said = ", ".join(
        f"{name_tasks(tasks)} {'is' if len(tasks) == 1 else 'are'} in {where}"
        for where, tasks in _by_place(places, busy).items()
    )
    if len(busy) == len(places):
        return said
    return f"{said}, the others wait for {'it' if len(busy) == 1 else 'them'}"


def _by_place(places: Mapping[TaskId, CodePlace], tasks: Sequence[TaskId]) -> dict[str, list[TaskId]]:
    found: dict[str, list[TaskId]] = {}
    for task in tasks:
        found.setdefault(places[task].where or "", []).append(task)
    return found
