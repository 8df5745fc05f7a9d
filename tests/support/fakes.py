"""Fakes of what the controller works with: a clock, and a task group that follows a script."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from raydist.controller.attempt import Attempt
from raydist.controller.result import RunPlaces
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Command, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.planning.fitting import resized
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import EntryPoint, JobSpec, KerasFlavour, Strategy, WorkerRange
from raydist.spec.tasks import Role, TaskId, TaskType

UNIX_AT_START_S = 1_000_000.0
_MOST_EMPTY_POLLS = 10_000

PLACES = RunPlaces(
    storage="/runs/r", task_logs=lambda task, attempt: f"/runs/r/logs/{attempt}/{task.path_name}"
)


def task(text: str) -> TaskId:
    return TaskId.parse(text)


def make_plan(
    *,
    workers: int = 2,
    ps: int = 0,
    strategy: Strategy = Strategy.MULTI_WORKER_MIRRORED,
    is_evaluated: bool = False,
    workers_range: WorkerRange | None = None,
    notes: tuple[str, ...] = (),
    **job_fields: Any,
) -> Plan:
    """Returns the plan of a run `r`; under ParameterServer with a chief."""
    roles = [Role(task_type=TaskType.WORKER, num_tasks=workers)]
    if strategy is Strategy.PARAMETER_SERVER:
        roles = [Role(task_type=TaskType.CHIEF), *roles, Role(task_type=TaskType.PS, num_tasks=ps or 1)]
    if is_evaluated:
        roles.append(Role(task_type=TaskType.EVALUATOR))
    if num_tasks := job_fields.get("data_workers"):
        roles.append(Role(task_type=TaskType.DATA_WORKER, num_tasks=num_tasks))
    entry_point = job_fields.pop("entry_point", EntryPoint(function="train", file="job.py"))
    job = JobSpec(name="r", entry_point=entry_point, **job_fields)
    if workers_range is not None:
        job = dataclasses.replace(job, workers=workers_range)
    return Plan(
        job=job,
        inventory=Inventory(hosts=(Host(name="10.0.0.1", num_cpus=4),), source="Ray at 10.0.0.1:6379"),
        strategy=strategy,
        keras=KerasFlavour.KERAS_3,
        reason="asked for",
        roles=tuple(roles),
        notes=notes,
    )


def make_status(name: str, state: TaskState = TaskState.RUNNING, **fields: Any) -> TaskStatus:
    index = TaskId.parse(name).index
    places = {"pid": 100 + index, "host": f"10.0.0.{index + 1}", "address": f"10.0.0.{index + 1}:3333"}
    return TaskStatus(task=task(name), state=state, **{**places, **fields})


def make_failure(name: str, kind: FailureKind = FailureKind.USER, **fields: Any) -> TaskFailure:
    texts = {"error_type": "ValueError", "message": "bad batch"}
    if kind is FailureKind.LOST:
        texts = {"error_type": "ProcessDied", "message": "killed by SIGKILL"}
    if kind is FailureKind.COLLATERAL:
        texts = {"error_type": "UnavailableError", "message": "Collective ops is aborted by: peer"}
    return TaskFailure(task=task(name), kind=kind, **{**texts, **fields})


def attempt_of(tasks: Iterable[TaskId], *statuses: TaskStatus) -> Attempt:
    """Returns the first attempt of `tasks`, which have sent these statuses."""
    attempt = Attempt.begun(0, tuple(tasks))
    attempt.take(GroupUpdate(statuses=statuses))
    return attempt


class FakeClock:
    """Time that advances only when it is told to."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def unix(self) -> float:
        return UNIX_AT_START_S + self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


# What happens to a group between two polls.
Moment = Callable[["FakeTaskGroup"], None]


class FakeTaskGroup:
    """One attempt whose tasks do what a script says: each poll runs the script's next moment.

    Once the script is over, a poll lets its time pass without news.
    """

    def __init__(self, tasks: Sequence[TaskId], *, clock: FakeClock, script: Iterable[Moment] = ()) -> None:
        self.clock = clock
        self.commands: list[tuple[Command, tuple[TaskId, ...]]] = []
        self.replaced: list[str] = []
        self.added: list[int] = []  # workers of each larger plan
        self.num_stops = 0
        self.is_for_another: bool | None = None
        self.last: tuple[TaskStatus, ...] = ()
        self.stop_problems: collections.deque[BaseException] = collections.deque()
        self.names = [str(each) for each in tasks]
        self._script = collections.deque(script)
        self._known: dict[str, TaskStatus] = {}
        self._news: dict[str, TaskStatus] = {}
        self._is_placed = False
        self._timings: dict[str, float] = {}
        self._num_empty_polls = 0

    def poll(self, *, timeout_s: float) -> GroupUpdate:
        assert timeout_s >= 0
        assert not self.num_stops, "polled after it was stopped"
        if self._script:
            self._script.popleft()(self)
        if not self._news:
            self._num_empty_polls += 1
            assert self._num_empty_polls < _MOST_EMPTY_POLLS, "the run does not end"
            self.clock.advance(timeout_s)
        statuses, self._news = tuple(self._news.values()), {}
        return GroupUpdate(
            statuses=statuses,
            all_placed=self._is_placed,
            all_addressed=self._is_placed,
            timings=tuple(self._timings.items()),
        )

    def command(self, command: Command, tasks: Sequence[TaskId] = ()) -> None:
        self.commands.append((command, tuple(tasks)))

    def add_workers(self, plan: Plan) -> None:
        self.added.append(plan.num_workers)

    def remove_workers(self, plan: Plan) -> None:
        self.added.append(plan.num_workers)

    def replace(self, task: TaskId) -> None:
        """The task's next process has sent no status yet."""
        name = str(task)
        self.replaced.append(name)
        incarnation = self._known[name].incarnation + 1
        self._known[name] = make_status(
            name, TaskState.STARTING, pid=1000 * incarnation, incarnation=incarnation
        )

    def stop(self, *, for_another: bool = False, keeps_state: bool = True) -> None:
        self.num_stops += 1
        self.is_for_another = for_another
        if self.stop_problems:
            raise self.stop_problems.popleft()

    def last_update(self) -> GroupUpdate:
        return GroupUpdate(statuses=self.last)

    def place_all(self) -> None:
        """Every task has a process that begins to import TensorFlow."""
        self._is_placed = True
        self._timings["placement"] = 1.0
        for name in self.names:
            self.say(name, state=TaskState.STARTING)

    def train_all(self, **fields: Any) -> None:
        """Every task enters the train function."""
        self._is_placed = True
        self._timings |= {"placement": 1.0, "tasks_ready": 2.0}
        for name in self.names:
            self.say(name, state=TaskState.RUNNING, **fields)

    def advance_all(self, step: int, **fields: Any) -> None:
        for name in self.names:
            self.say(name, step=step, **fields)

    def finish_all(self) -> None:
        for name in self.names:
            self.finish_task(name)

    def finish_task(self, name: str) -> None:
        self.say(name, state=TaskState.FINISHED)

    def fail_task(self, name: str, kind: FailureKind = FailureKind.USER, **fields: Any) -> None:
        step = self._known[name].step if name in self._known else 0
        failure = make_failure(name, kind, **{"step": step, "at_s": self.clock.unix(), **fields})
        self.say(name, state=TaskState.FAILED, failure=failure)

    def say(self, name: str, **fields: Any) -> None:
        """Lets one task push a status, whose other fields stay as they were."""
        known = self._known.get(name) or make_status(name)
        self._known[name] = self._news[name] = dataclasses.replace(known, **fields)


class FakeLauncher:
    """Launches one fake group for each attempt's script; an exception in place of a script is raised.

    Attributes:
      avoided: The hosts to avoid, by attempt.
      suspected: The hosts to look at, by attempt.
      workers: How many workers the cluster has room for, from now on.
    """

    def __init__(self, plan: Plan, scripts: Sequence[Sequence[Moment] | BaseException], *, clock: FakeClock):
        self.groups: list[FakeTaskGroup] = []
        self.attempts: list[int] = []
        self.avoided: list[frozenset[str]] = []
        self.suspected: list[frozenset[str]] = []
        self.workers = plan.num_workers
        self.num_closes = 0
        self._plan = plan
        self._scripts = collections.deque(scripts)
        self._clock = clock

    def replan(
        self,
        *,
        avoid: frozenset[str],
        suspected: frozenset[str] = frozenset(),
        out_of_memory: Sequence[TaskType] = (),
    ) -> Plan:
        self.avoided.append(avoid)
        self.suspected.append(suspected)
        return resized(self._plan, self.workers)

    def room(self, plan: Plan, *, is_placed: bool) -> int:
        return self.workers

    def launch(self, plan: Plan, *, attempt: int) -> FakeTaskGroup:
        self.attempts.append(attempt)
        script = self._scripts.popleft()
        if isinstance(script, BaseException):
            raise script
        self.groups.append(FakeTaskGroup(plan.tasks, clock=self._clock, script=script))
        return self.groups[-1]

    def close(self) -> None:
        self.num_closes += 1
