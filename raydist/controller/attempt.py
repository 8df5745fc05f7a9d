"""What is known of the tasks of the current attempt, and whether it has succeeded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import BEFORE_SERVICE, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.job import Strategy
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


_MAX_NAMED_TASKS = 8
_ALIVE = (*BEFORE_SERVICE, TaskState.RUNNING)
# In the order of an attempt's tasks.
_RANKS = {task_type: rank for rank, task_type in enumerate(TaskType)}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The tasks of one attempt. Immutable, so that another thread may read it while the run is running.

    Attributes:
      statuses: The newest status of each task that has sent one, of its newest incarnation.
      is_placed: Whether every task has had a process.
      is_addressed: Whether every task has the addresses of the others.
      addresses: The address that each task's peers connect to.
      absent: How the tasks died whose replacements are not in service yet.
      dismissed: The tasks whose end does not matter any more: given up, or not needed for what is left.
      changes: The task of each change of a process or its state, the oldest first.
      tally: What is known of all tasks together.
    """

    number: int
    tasks: tuple[TaskId, ...]
    statuses: Mapping[TaskId, TaskStatus] = field(default_factory=dict)
    is_placed: bool = False
    is_addressed: bool = False
    addresses: Mapping[TaskId, str] = field(default_factory=dict)
    absent: Mapping[TaskId, TaskFailure] = field(default_factory=dict)
    dismissed: frozenset[TaskId] = frozenset()
    changes: tuple[TaskId, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def begun(cls, number: int, tasks: tuple[TaskId, ...]) -> Attempt:
        """Returns an attempt as it is before any of its tasks has a process."""
        return cls(number=number, tasks=tasks, tally=Tally.of_pending(tasks))

    def updated(self, update: GroupUpdate) -> Attempt:
        attempt = self._with(status for status in update.statuses if self._is_news(status))
        return dataclasses.replace(
            attempt,
            is_placed=self.is_placed or update.all_placed,
            is_addressed=self.is_addressed or update.all_addressed,
        )

    def replaced(self, failure: TaskFailure) -> Attempt:
        """Returns the attempt as it is once a new process is asked for in the place of the one that died."""
        task = failure.task
        incarnation = self.statuses[task].incarnation + 1
        awaited = TaskStatus(task=task, state=TaskState.PENDING, pid=0, host="", incarnation=incarnation)
        return dataclasses.replace(self._with([awaited]), absent={**self.absent, task: failure})

    def failed(self, failure: TaskFailure) -> Attempt:
        """Returns the attempt as it is once one of its tasks is declared lost."""
        task = failure.task
        status = self.statuses[task]
        failure = dataclasses.replace(failure, step=status.step)
        return self._with([dataclasses.replace(status, state=TaskState.FAILED, failure=failure)])

    def without(self, tasks: Iterable[TaskId]) -> Attempt:
        """Returns the attempt as it is once `tasks` are dismissed."""
        more = [task for task in tasks if task not in self.dismissed]
        tally = self.tally.without((task.task_type, self.state_of(task)) for task in more)
        return dataclasses.replace(self, dismissed=self.dismissed.union(more), tally=tally)

    def stopped(self) -> Attempt:
        """Returns the attempt as it is once its processes are gone."""
        return self._with(
            dataclasses.replace(status, state=TaskState.STOPPED)
            for status in self.statuses.values()
            if not status.state.is_terminal
        )

    def news_since(self, num_changes: int, senders: Iterable[TaskId] = ()) -> tuple[TaskStatus, ...]:
        """Returns the newest status of each task that sent one, or is among the later ones of `changes`."""
        tasks = dict.fromkeys([*senders, *self.changes[num_changes:]])
        return tuple(self.statuses[task] for task in tasks)

    def _with(self, statuses: Iterable[TaskStatus]) -> Attempt:
        """Returns the attempt with these statuses in the place of those that their tasks had."""
        news, turns = {status.task: status for status in statuses}, []
        for task, status in news.items():
            before = self.statuses.get(task)
            if before is None or _is_turn(before, status):
                turns.append((before, status))
        attempt = dataclasses.replace(self, statuses={**self.statuses, **news})
        if not turns:
            return attempt
        absent, addresses = self.absent, self.addresses
        first = {now.task: now.address for _, now in turns if now.address and now.task not in addresses}
        if not absent.keys().isdisjoint(news):
            is_back = {now.task for _, now in turns if self._is_back(now)}
            absent = {task: failure for task, failure in absent.items() if task not in is_back}
        return dataclasses.replace(
            attempt,
            addresses={**addresses, **first} if first else addresses,
            absent=absent,
            changes=(*self.changes, *(now.task for before, now in turns if _stage(before) != _stage(now))),
            tally=self.tally.changed(
                turns,
                moved={now.task for _, now in turns if self._has_moved(now)},
                dismissed=self.dismissed,
            ),
        )

    def _is_news(self, status: TaskStatus) -> bool:
        # How a process ended does not change when it goes away afterwards, or when an older push arrives
        # late; only of a process that was taken for lost more may become known.
        known = self.statuses.get(status.task)
        if known is None or status.incarnation > known.incarnation:
            return True
        if status.incarnation < known.incarnation:
            return False
        if known.state in _ALIVE:
            return True
        was_lost = known.failure is not None and known.failure.kind is FailureKind.LOST
        return was_lost and status.failure is not None and status.failure.kind is not FailureKind.LOST

    def _is_back(self, status: TaskStatus) -> bool:
        """Whether a replacement serves, or has come up where its peers cannot reach it."""
        return status.state in (TaskState.RUNNING, TaskState.FINISHED) or self._has_moved(status)

    def _has_moved(self, status: TaskStatus) -> bool:
        # No task connects to an evaluator.
        expected = self.addresses.get(status.task) if status.task.task_type is TaskType.WORKER else None
        return None not in (expected, status.address) and status.address != expected

    @property
    def needed(self) -> tuple[TaskId, ...]:
        """The tasks that are not dismissed."""
        return tuple(task for task in self.tasks if task not in self.dismissed)

    def state_of(self, task: TaskId) -> TaskState:
        return self.statuses[task].state if task in self.statuses else TaskState.PENDING

    @property
    def failures(self) -> tuple[TaskFailure, ...]:
        return tuple(self.tally.failures[task] for task in self._needed_of(self.tally.failures))

    @property
    def moved(self) -> tuple[TaskId, ...]:
        """The workers that came back at another address than the one that their peers connect to."""
        return self._needed_of(self.tally.moved)

    @property
    def told_to_leave(self) -> tuple[TaskId, ...]:
        """The tasks whose processes have to end, those that have ended included."""
        return tuple(self.tally.leaving)

    @property
    def leaving(self) -> tuple[TaskId, ...]:
        """The tasks that are needed, have to end, and live still."""
        return tuple(task for task in self._needed_of(self.tally.leaving) if self.state_of(task) in _ALIVE)

    def _needed_of(self, tasks: Iterable[TaskId]) -> tuple[TaskId, ...]:
        needed = (task for task in tasks if task not in self.dismissed)
        return tuple(sorted(needed, key=lambda task: (_RANKS[task.task_type], task.index)))

    @property
    def step(self) -> int:
        return max((status.step for status in self.statuses.values()), default=0)

    @property
    def restored_step(self) -> int:
        """The step that the attempt's training began at; an evaluator restores all the time."""
        trainers = (s for s in self.statuses.values() if s.task.task_type is not TaskType.EVALUATOR)
        return max((status.restored_step for status in trainers), default=0)

    def left_s(self, chief: TaskId) -> float | None:
        """Returns the time to the last step at the mean rate, which has evaluations and saves in it.

        None while it is unknown.
        """
        status = self.statuses.get(chief)
        if status is None or status.num_steps is None:
            return None
        if status.first_step_at_s is None or status.first_step is None:
            return None
        num_timed = status.step - status.first_step  # what came before it built the function
        num_left = max(0, status.num_steps - status.step)
        if num_timed < 1 or status.at_s <= status.first_step_at_s:
            return None
        return num_left * (status.at_s - status.first_step_at_s) / num_timed

    @property
    def all_started(self) -> bool:
        return not self.tally.num_in(BEFORE_SERVICE)

    @property
    def all_ended(self) -> bool:
        return not self.tally.num_in(_ALIVE)

    @property
    def all_located(self) -> bool:
        """Whether every task that trains has said where it is in its code."""
        training = (self.statuses[task] for task in self.needed if self.state_of(task) is TaskState.RUNNING)
        return all(status.place is not None for status in training)

    @property
    def furthest_behind(self) -> tuple[TaskId, ...]:
        """The tasks that the others wait for: those without a status, else those that do not train yet."""
        for state in BEFORE_SERVICE:
            behind = tuple(task for task in self.needed if self.state_of(task) is state)
            if any(task.task_type in (TaskType.WORKER, TaskType.PS) for task in behind):
                # A coordinator is ready only once all of these are.
                return tuple(task for task in behind if task.task_type is not TaskType.CHIEF)
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
        place = status and (status.address or status.host)
        return f"{task}{f' at {place}' if place else ''} ({self.state_of(task).name})"


def _stage(status: TaskStatus | None) -> tuple[int, TaskState]:
    return (0, TaskState.PENDING) if status is None else (status.incarnation, status.state)


def _is_turn(before: TaskStatus, now: TaskStatus) -> bool:
    """Whether more than the work that a task has done is another one."""
    return (
        before.state is not now.state
        or before.incarnation != now.incarnation
        or before.address != now.address
        or before.leaving != now.leaving
        or before.failure is not now.failure
    )


def name_tasks(tasks: Sequence[TaskId]) -> str:
    """Returns `worker/0, worker/1`, cut short where there are many."""
    named = ", ".join(str(task) for task in tasks[:_MAX_NAMED_TASKS])
    more = len(tasks) - _MAX_NAMED_TASKS
    return f"{named} and {more} more" if more > 0 else named


# Parameter servers never return, and a worker only serves what the chief schedules.
_SERVERS_UNDER_PARAMETER_SERVER = (TaskType.WORKER, TaskType.PS)


def has_succeeded(strategy: Strategy, counts: Counts) -> bool:
    """Whether the attempt whose needed tasks are counted in `counts` has done its work.

    Synchronous training is done when every task has returned, but for data workers, which never do: a run
    with a dead worker is not a success.
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
