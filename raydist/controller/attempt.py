"""What is known of the attempt in hand, and of the run as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raydist.controller.task_group import GroupUpdate
from raydist.spec.status import FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.tasks import TaskId

_MAX_NAMED_TASKS = 8


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The tasks of one attempt. Immutable, so that another thread may read it while the run goes on.

    Attributes:
      statuses: The newest status of each task that has said something.
      is_placed: Whether every task has a process.
    """

    number: int
    tasks: tuple[TaskId, ...]
    statuses: Mapping[TaskId, TaskStatus] = field(default_factory=dict)
    is_placed: bool = False

    def updated(self, update: GroupUpdate) -> Attempt:
        news = {status.task: status for status in update.statuses if self._is_news(status)}
        return dataclasses.replace(
            self, statuses={**self.statuses, **news}, is_placed=self.is_placed or update.all_placed
        )

    def stopped(self) -> Attempt:
        """Returns the attempt as it is once its processes are gone."""
        ended = {
            task: status if status.state.is_terminal else dataclasses.replace(status, state=TaskState.STOPPED)
            for task, status in self.statuses.items()
        }
        return dataclasses.replace(self, statuses=ended)

    def _is_news(self, status: TaskStatus) -> bool:
        # How a task ended does not change when its process goes away afterwards, or when an older push
        # arrives late; only a death without a word may still be explained.
        known = self.statuses.get(status.task)
        if known is None or not known.state.is_terminal:
            return True
        was_lost = known.failure is not None and known.failure.kind is FailureKind.LOST
        return was_lost and status.failure is not None and status.failure.kind is not FailureKind.LOST

    @property
    def states(self) -> dict[TaskId, TaskState]:
        return {task: self.state_of(task) for task in self.tasks}

    def state_of(self, task: TaskId) -> TaskState:
        return self.statuses[task].state if task in self.statuses else TaskState.PENDING

    @property
    def failures(self) -> tuple[TaskFailure, ...]:
        statuses = [self.statuses[task] for task in self.tasks if task in self.statuses]
        return tuple(status.failure for status in statuses if status.failure is not None)

    @property
    def restored_step(self) -> int:
        return max((status.restored_step for status in self.statuses.values()), default=0)

    @property
    def all_started(self) -> bool:
        return not any(state in (TaskState.PENDING, TaskState.STARTING) for state in self.states.values())

    @property
    def all_ended(self) -> bool:
        return all(state.is_terminal for state in self.states.values())

    @property
    def furthest_behind(self) -> tuple[TaskId, ...]:
        """The tasks that the others wait for: those that never spoke, else those that do not train yet."""
        for state in (TaskState.PENDING, TaskState.STARTING):
            behind = tuple(task for task in self.tasks if self.state_of(task) is state)
            if behind:
                return behind
        return ()

    def unfinished_besides(self, task: TaskId) -> tuple[TaskId, ...]:
        """The other tasks that end with the attempt, without having done their work."""
        return tuple(
            peer for peer in self.tasks if peer != task and self.state_of(peer) is not TaskState.FINISHED
        )

    def describe(self, task: TaskId) -> str:
        """Returns `worker/1 at 10.0.0.2:3333 (STARTING)`, of what is known."""
        status = self.statuses.get(task)
        where = f" at {status.address or status.host}" if status else ""
        return f"{task}{where} ({self.state_of(task).name})"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What the run has reached, over all attempts.

    Attributes:
      steps: The highest step completed.
      metrics: The chief's last report.
      checkpoint: URI of the newest checkpoint that the chief committed; None before the first.
      notes: What the tasks chose on the user's behalf, each sentence once.
    """

    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()

    def updated(self, statuses: Sequence[TaskStatus], *, chief: TaskId) -> Reached:
        reached = self
        for status in statuses:
            reached = dataclasses.replace(
                reached,
                steps=max(reached.steps, status.step),
                notes=tuple(dict.fromkeys([*reached.notes, *status.notes])),
            )
            if status.task == chief:
                reached = dataclasses.replace(
                    reached,
                    metrics=status.metrics or reached.metrics,
                    checkpoint=status.checkpoint or reached.checkpoint,
                )
        return reached


def name_tasks(tasks: Sequence[TaskId]) -> str:
    """Returns `worker/0, worker/1`, cut short where there are many."""
    named = ", ".join(str(task) for task in tasks[:_MAX_NAMED_TASKS])
    more = len(tasks) - _MAX_NAMED_TASKS
    return f"{named} and {more} more" if more > 0 else named
