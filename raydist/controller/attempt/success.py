"""When an attempt has succeeded, by strategy."""

from __future__ import annotations

from collections.abc import Iterable

from raydist.controller.attempt.tally import Counts
from raydist.spec.job import Strategy
from raydist.spec.status import TaskState
from raydist.spec.tasks import TaskId, TaskType

# Parameter servers never return, and a worker only serves what the chief schedules.
_SERVERS_UNDER_PARAMETER_SERVER = (TaskType.WORKER, TaskType.PS)


def has_succeeded(strategy: Strategy, counts: Counts) -> bool:
    """Whether the attempt whose needed tasks are counted in `counts` has done its work.

    Synchronous training is done when every task has returned, but for data workers, which never do: a run
    with a dead worker is no success.
    """
    serving = (TaskType.DATA_WORKER, *_serving(strategy))
    return not any(
        number and state is not TaskState.FINISHED and task_type not in serving
        for (task_type, state), number in counts.items()
    )


def servers(strategy: Strategy, tasks: Iterable[TaskId], *, is_script: bool = False) -> tuple[TaskId, ...]:
    """Returns those of `tasks` that are not needed once the chief has returned, however they end.

    A data worker is none of them: other workers may still read from it. The evaluator of a script is one:
    the script cannot learn that training is done.
    """
    serving = _serving(strategy)
    if serving and is_script:
        serving = (*serving, TaskType.EVALUATOR)
    return tuple(task for task in tasks if task.task_type in serving)


def _serving(strategy: Strategy) -> tuple[TaskType, ...]:
    return _SERVERS_UNDER_PARAMETER_SERVER if strategy is Strategy.PARAMETER_SERVER else ()
