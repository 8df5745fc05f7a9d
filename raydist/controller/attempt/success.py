"""When an attempt has succeeded, by strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raydist.spec.job import Strategy
from raydist.spec.status import TaskState
from raydist.spec.tasks import TaskId, TaskType

# Parameter servers never return, and a worker only serves what the chief schedules.
_SERVERS_UNDER_PARAMETER_SERVER = (TaskType.WORKER, TaskType.PS)


def has_succeeded(strategy: Strategy, states: Mapping[TaskId, TaskState]) -> bool:
    """Whether the attempt whose tasks, all that are needed, are in `states` has done its work.

    Synchronous training is done when every task has returned, but for data workers, which never do: a run
    with a dead worker is no success.
    """
    serving = {TaskType.DATA_WORKER, *(task.task_type for task in servers(strategy, states))}
    return all(state is TaskState.FINISHED for task, state in states.items() if task.task_type not in serving)


def servers(strategy: Strategy, tasks: Iterable[TaskId], *, is_script: bool = False) -> tuple[TaskId, ...]:
    """Returns those of `tasks` that are not needed once the chief has returned, however they end.

    A data worker is none of them: other workers may still read from it. The evaluator of a script is one:
    the script cannot learn that training is done.
    """
    if strategy is not Strategy.PARAMETER_SERVER:
        return ()
    serving = (*_SERVERS_UNDER_PARAMETER_SERVER, *((TaskType.EVALUATOR,) if is_script else ()))
    return tuple(task for task in tasks if task.task_type in serving)
