"""Tally: what is known of an attempt's tasks together, carried along as each of them changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.spec.status import TaskFailure, TaskState, TaskStatus
from raydist.spec.tasks import TaskId, TaskType

# How many tasks of a type are in a state.
Counts = Mapping[tuple[TaskType, TaskState], int]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Sums and exceptions over all tasks. Immutable.

    With them, news of one task takes no look at the others.

    Attributes:
      counts: The tasks that are needed, by type and state.
      failures: How those failed that did.
      moved: The workers that came back at another address than the one that their peers connect to.
      leaving: The tasks whose processes have to end, those that have ended included.
    """

    counts: Counts = field(default_factory=dict)
    failures: Mapping[TaskId, TaskFailure] = field(default_factory=dict)
    moved: Collection[TaskId] = ()
    leaving: Collection[TaskId] = ()

    @classmethod
    def of_pending(cls, tasks: Iterable[TaskId]) -> Tally:
        return cls(counts=Counter((task.task_type, TaskState.PENDING) for task in tasks))

    def changed(
        self,
        changes: Iterable[tuple[TaskStatus | None, TaskStatus]],
        *,
        moved: Collection[TaskId],
        dismissed: Collection[TaskId],
    ) -> Tally:
        """Returns it after changes of some tasks.

        Args:
          changes: Of each task the status before, None before the first, and the one now.
          moved: Those of the tasks that have moved, by the status now.
          dismissed: The tasks that are not counted.
        """
        counts, failures = Counter(self.counts), dict(self.failures)
        now_moved, leaving = dict.fromkeys(self.moved), dict.fromkeys(self.leaving)
        for before, now in changes:
            task = now.task
            if task not in dismissed:
                counts[task.task_type, TaskState.PENDING if before is None else before.state] -= 1
                counts[task.task_type, now.state] += 1
            _keep(failures, task, now.failure)
            _keep(now_moved, task, task in moved or None)
            _keep(leaving, task, now.leaving)
        return Tally(counts=counts, failures=failures, moved=tuple(now_moved), leaving=tuple(leaving))

    def without(self, states: Iterable[tuple[TaskType, TaskState]]) -> Tally:
        """Returns it without counting tasks of these types, which are in these states."""
        counts = Counter(self.counts)
        counts.subtract(states)
        return Tally(counts=counts, failures=self.failures, moved=self.moved, leaving=self.leaving)

    def num_in(self, states: Collection[TaskState]) -> int:
        return sum(number for (_, state), number in self.counts.items() if state in states)


def _keep(known: dict[TaskId, Any], task: TaskId, value: object) -> None:
    if value is not None:
        known[task] = value
    else:
        known.pop(task, None)
