"""When an attempt has succeeded, by strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raydist.spec.job import Strategy
from raydist.spec.status import TaskState
from raydist.spec.tasks import TaskId, TaskType

# Parameter servers never return, and a worker only serves what the chief schedules.
_DECISIVE_UNDER_PARAMETER_SERVER = (TaskType.CHIEF, TaskType.EVALUATOR)


def has_succeeded(strategy: Strategy, states: Mapping[TaskId, TaskState]) -> bool:
    """Whether the attempt whose tasks, all that are needed, are in `states` has done its work.

    Synchronous training is done when every worker has returned: a run with a dead one is no success.
    Data workers never return.
    """
    is_asynchronous = strategy is Strategy.PARAMETER_SERVER
    decisive = _DECISIVE_UNDER_PARAMETER_SERVER if is_asynchronous else (TaskType.WORKER,)
    return all(state is TaskState.FINISHED for task, state in states.items() if task.task_type in decisive)


def servers(strategy: Strategy, tasks: Iterable[TaskId]) -> tuple[TaskId, ...]:
    """Returns those of `tasks` that nobody needs once the chief has returned, however they end."""
    if strategy is not Strategy.PARAMETER_SERVER:
        return ()
    return tuple(task for task in tasks if task.task_type not in _DECISIVE_UNDER_PARAMETER_SERVER)
