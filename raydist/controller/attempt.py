"""What is known of the tasks of the current attempt, and whether it has succeeded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import BEFORE_SERVICE, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.planning.roles import outlives_death_of
from raydist.spec.job import Strategy, Success
from raydist.spec.tasks import TaskId, TaskType

# How many tasks of a type are in a state.
Counts = Mapping[tuple[TaskType, TaskState], int]


@dataclass(kw_only=True)
class Tally:
    """Sums and exceptions over all tasks: with them, news of one task takes no look at the others.

    Attributes:
      counts: The tasks that are needed, by type and state.
      failures: How those failed that did.
      moved: The workers and data workers that came back at another address than the one that their peers
        connect to.
      leaving: The tasks whose processes have to end, those that have ended included.
    """

    counts: Counter[tuple[TaskType, TaskState]] = field(default_factory=Counter)
    failures: dict[TaskId, TaskFailure] = field(default_factory=dict)
    moved: dict[TaskId, bool] = field(default_factory=dict)
    leaving: dict[TaskId, str] = field(default_factory=dict)

    def change(
        self, before: TaskStatus | None, now: TaskStatus, *, has_moved: bool, is_dismissed: bool
    ) -> None:
        """Takes in that a task has another status than `before`, which is None for its first."""
        task = now.task
        if not is_dismissed:
            self.counts[task.task_type, TaskState.PENDING if before is None else before.state] -= 1
            self.counts[task.task_type, now.state] += 1
        _keep(self.failures, task, now.failure)
        _keep(self.moved, task, has_moved or None)
        _keep(self.leaving, task, now.leaving)

    def num_in(self, states: Collection[TaskState]) -> int:
        return sum(number for (_, state), number in self.counts.items() if state in states)


def _keep(known: dict[TaskId, Any], task: TaskId, value: object) -> None:
    if value is not None:
        known[task] = value
    else:
        known.pop(task, None)


_ALIVE = (*BEFORE_SERVICE, TaskState.RUNNING)
# In the order of an attempt's tasks.
_RANKS = {task_type: rank for rank, task_type in enumerate(TaskType)}


@dataclass(kw_only=True)
class Attempt:
    """The tasks of one attempt. News of one task costs the same in any run: nothing is copied for it.

    Attributes:
      statuses: The newest status of each task that has sent one, of its newest incarnation.
      is_placed: Whether every task has had a process.
      is_addressed: Whether every task has the addresses of the others.
      addresses: The address that each task's peers connect to.
      absent: How the tasks died whose replacements are not in service yet.
      dismissed: The tasks whose end does not matter any more: given up, or not needed for what is left.
      changes: The task of each change of a process or its state, the oldest first.
      tally: What is known of all tasks together.
      step: The highest step that a task has told.
    """

    number: int
    tasks: tuple[TaskId, ...]
    statuses: dict[TaskId, TaskStatus] = field(default_factory=dict)
    is_placed: bool = False
    is_addressed: bool = False
    addresses: dict[TaskId, str] = field(default_factory=dict)
    absent: dict[TaskId, TaskFailure] = field(default_factory=dict)
    dismissed: set[TaskId] = field(default_factory=set)
    changes: list[TaskId] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    step: int = 0

    @classmethod
    def begun(cls, number: int, tasks: tuple[TaskId, ...]) -> Attempt:
        """Returns an attempt as it is before any of its tasks has a process."""
        counts = Counter((task.task_type, TaskState.PENDING) for task in tasks)
        return cls(number=number, tasks=tasks, tally=Tally(counts=counts))

    def take(self, update: GroupUpdate) -> list[TaskId]:
        """Takes in what is new; returns the tasks that were absent and are back."""
        self.is_placed |= update.all_placed
        self.is_addressed |= update.all_addressed
        back = []
        for status in update.statuses:
            task, known = status.task, self.statuses.get(status.task)
            if known is not None and not _is_news(status, known):
                continue
            self._put(status, known)
            if task in self.absent and self._is_back(status):
                del self.absent[task]
                back.append(task)
        return back

    def await_replacement(self, failure: TaskFailure) -> None:
        """Takes in that a new process is asked for in the place of the one that died."""
        task, dead = failure.task, self.statuses[failure.task]
        awaited = TaskStatus(
            task=task, state=TaskState.PENDING, pid=0, host="", incarnation=dead.incarnation + 1
        )
        self._put(awaited, dead)
        self.absent[task] = failure

    def add(self, tasks: tuple[TaskId, ...]) -> None:
        """Takes in that the attempt has these tasks now; those that are new have no process yet."""
        for task in set(tasks) - set(self.tasks):
            self.tally.counts[task.task_type, TaskState.PENDING] += 1
        self.tasks = _in_order({*self.tasks, *tasks})

    def num_awaited(self, task_type: TaskType) -> int:
        """Returns how many needed tasks of a type have no process."""
        return self.tally.counts[task_type, TaskState.PENDING]

    def declare_lost(self, failure: TaskFailure) -> None:
        """Takes in that one of the tasks is lost, whatever it says."""
        status = self.statuses[failure.task]
        failure = dataclasses.replace(failure, step=status.step)
        self._put(dataclasses.replace(status, state=TaskState.FAILED, failure=failure), status)

    def dismiss(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            if task not in self.dismissed:
                self.dismissed.add(task)
                self.tally.counts[task.task_type, self.state_of(task)] -= 1

    def end(self) -> None:
        """Takes in that the processes are gone."""
        for status in list(self.statuses.values()):
            if not status.state.is_terminal:
                self._put(dataclasses.replace(status, state=TaskState.STOPPED), status)

    def news_since(self, num_changes: int, senders: Iterable[TaskId] = ()) -> tuple[TaskStatus, ...]:
        """Returns the newest status of each task that sent one, or is among the later ones of `changes`."""
        tasks = dict.fromkeys([*senders, *self.changes[num_changes:]])
        return tuple(self.statuses[task] for task in tasks)

    def _put(self, status: TaskStatus, before: TaskStatus | None) -> None:
        """Puts a status in the place of the one `before`."""
        task = status.task
        self.statuses[task] = status
        if status.step > self.step:
            self.step = status.step
        if before is not None and not _is_turn(before, status):
            return
        if status.address:
            self.addresses.setdefault(task, status.address)
        if _stage(before) != _stage(status):
            self.changes.append(task)
        has_moved, is_dismissed = self._has_moved(status), task in self.dismissed
        self.tally.change(before, status, has_moved=has_moved, is_dismissed=is_dismissed)

    def _is_back(self, status: TaskStatus) -> bool:
        """Whether a replacement serves, or has come up where its peers cannot reach it."""
        return status.state in (TaskState.RUNNING, TaskState.FINISHED) or self._has_moved(status)

    def _has_moved(self, status: TaskStatus) -> bool:
        has_peers = status.task.task_type in (TaskType.WORKER, TaskType.DATA_WORKER)
        expected = self.addresses.get(status.task) if has_peers else None  # none connects to an evaluator
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
        """The tasks that came back at another address than the one that their peers connect to."""
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
        return _in_order(task for task in tasks if task not in self.dismissed)

    def outlives(self, task: TaskId, strategy: Strategy) -> bool:
        """Whether it continues without that task until a new process takes its place."""
        if task.task_type is not TaskType.DATA_WORKER:
            return outlives_death_of(task, strategy)
        # Training tasks find the others through the dispatcher, which is in the first one's process.
        told = {status.divides_data for status in self.statuses.values()} - {None}
        return task.index > 0 and told == {False}

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


def _in_order(tasks: Iterable[TaskId]) -> tuple[TaskId, ...]:
    return tuple(sorted(tasks, key=lambda task: (_RANKS[task.task_type], task.index)))


def _is_news(status: TaskStatus, known: TaskStatus) -> bool:
    # How a process ended does not change when it goes away afterwards, or when an older push arrives late;
    # only of a process that was taken for lost more may become known.
    if status.incarnation != known.incarnation:
        return status.incarnation > known.incarnation
    if known.state in _ALIVE:
        return True
    was_lost = known.failure is not None and known.failure.kind is FailureKind.LOST
    return was_lost and status.failure is not None and status.failure.kind is not FailureKind.LOST


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


# Parameter servers never return, and a worker only serves what the chief schedules.
_SERVERS_UNDER_PARAMETER_SERVER = (TaskType.WORKER, TaskType.PS, TaskType.DATA_WORKER)


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


def servers(
    strategy: Strategy, tasks: Iterable[TaskId], *, is_script: bool = False, success: Success = Success.ALL
) -> tuple[TaskId, ...]:
    """Returns those of `tasks` that are not needed once the chief has returned, however they end.

    In synchronous training a data worker is none of them: other workers may still read from it. The
    evaluator of a script is one: the script cannot learn that training is done.
    """
    serving = _serving(strategy)
    if serving and is_script:
        serving = (*serving, TaskType.EVALUATOR)
    tasks = tuple(tasks)
    found = [task for task in tasks if task.task_type in serving]
    if success is Success.CHIEF and not serving:
        found = [task for task in tasks if task.task_type is TaskType.WORKER and task.index > 0]
    return tuple(found)


def _serving(strategy: Strategy) -> tuple[TaskType, ...]:
    return _SERVERS_UNDER_PARAMETER_SERVER if strategy is Strategy.PARAMETER_SERVER else ()
