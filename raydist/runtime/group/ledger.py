"""What an attempt's tasks report: heard from each agent in a thread, and kept in the ledger with its news."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray

from raydist.controller.task_group import GroupUpdate
from raydist.outcome.printed import Printed
from raydist.outcome.status import BEFORE_SERVICE, TaskFailure, TaskState, TaskStatus
from raydist.runtime.task.greeting import Hello
from raydist.spec.tasks import TaskId, TaskType

# What comes within this time is taken together, so that a large run does not keep the controller busy.
_GATHER_S = 0.02
# A task tells its progress twice a second. Up to a thousand tasks no more than so many do in a second, since
# each answer costs the driver some 0.3 ms. Each tells it so often that it is not taken for missing.
_PROGRESS_EVERY_S = 0.5
_ANSWERS_A_SECOND = 500
_MOST_PROGRESS_S = 2.0


# What scripts print, of all tasks each time that they tell their progress, and of one.
_PRINTED_BYTES, _MOST_PRINTED_BYTES, _LEAST_PRINTED_BYTES = 1 << 20, 1 << 17, 1 << 12


def max_printed_bytes(num_tasks: int) -> int:
    """Returns how much of what its script prints each task of such a run tells at a time."""
    return max(min(_PRINTED_BYTES // num_tasks, _MOST_PRINTED_BYTES), _LEAST_PRINTED_BYTES)


def progress_every_s(num_tasks: int) -> float:
    """Returns how often each task of such a run tells its progress, in seconds."""
    return min(max(_PROGRESS_EVERY_S, num_tasks / _ANSWERS_A_SECOND), _MOST_PROGRESS_S)


@dataclass(frozen=True)
class Answer:
    """The answer to a call: its result, or the error that Ray raises for it.

    Attributes:
      key: As it was given with the call.
    """

    key: Hashable
    future: Future[Any]


class Listener:
    """Keeps a long poll open at each agent that it follows, also while its owner does something else.

    An agent that nobody asks for long takes itself for cut off.
    """

    def __init__(self, *, progress_every_s: float, max_printed_bytes: int = 0) -> None:
        """Takes the seconds after which a task's progress alone is told, and see `TaskActor.news`."""
        self._progress_every_s = progress_every_s
        self._max_printed_bytes = max_printed_bytes
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Answer, Any] | None] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._follow_all, name="raydist-news", daemon=True).start()

    def expect(self, key: Hashable, ref: Any) -> None:
        """Has `take` return the answer to a call."""
        ref.future().add_done_callback(lambda future: self._answers.put(Answer(key, future)))

    def follow(self, key: Hashable, agent: Any) -> None:
        """Has `take` return all that the agent tells, up to an error."""
        self._ask(key, agent, since=0)

    def take(self, *, timeout_s: float) -> list[Answer]:
        """Waits for an answer; returns all that have come."""
        try:
            answers = [self._answers.get(timeout=timeout_s)] if timeout_s > 0 else []
        except queue.Empty:
            return []
        if answers:
            time.sleep(_GATHER_S)
        while True:
            try:
                answers.append(self._answers.get_nowait())
            except queue.Empty:
                return answers

    def close(self) -> None:
        """Asks no more. Idempotent."""
        self._is_closed = True
        self._ready.put(None)

    def _ask(self, key: Hashable, agent: Any, *, since: int) -> None:
        # Ray's own thread, which the callback runs in, is not to call Ray.
        asked = agent.news.remote(since, self._progress_every_s, self._max_printed_bytes).future()

        def take(future: Future[Any]) -> None:
            answer = Answer(key, future)
            self._answers.put(answer)  # here: what an agent has told as this was closed is not lost
            self._ready.put((answer, agent))

        asked.add_done_callback(take)

    def _follow_all(self) -> None:
        while (ready := self._ready.get()) is not None and not self._is_closed and ray.is_initialized():
            answer, agent = ready
            if answer.future.exception() is None:  # else there is nobody to ask any more
                self._ask(answer.key, agent, since=answer.future.result().seq)


class Ledger:
    """Keeps the newest status of each task; a process's terminal one is final. Knows nothing of Ray's calls.

    Attributes:
      hellos: What the task's newest process sent when it came up.
      all_addressed: Whether all tasks have come up, so that each can be given the addresses of the others.
    """

    def __init__(self, tasks: Iterable[TaskId], *, started_at_s: float, clock: Callable[[], float]) -> None:
        self._tasks = tuple(tasks)
        self._clock = clock
        self._started_at_s = started_at_s
        self._statuses: dict[TaskId, TaskStatus] = {}
        self._news: dict[TaskId, TaskStatus] = {}
        self._printed: list[Printed] = []
        self._timings: dict[str, float] = {}
        self._drained: set[TaskId] = set()
        self._awaited: set[TaskId] = set()  # of those that have a status, the ones that do not train yet
        self._failed: set[TaskId] = set()
        # When each task that continues has sent its last status, the oldest first.
        self._received_at_s: collections.OrderedDict[TaskId, float] = collections.OrderedDict()
        self.hellos: dict[TaskId, Hello] = {}
        self.all_addressed = False

    def add(self, tasks: Iterable[TaskId]) -> None:
        """Awaits these tasks too."""
        self._tasks = (*self._tasks, *tasks)

    def remove(self, task: TaskId) -> None:
        """Awaits nothing of a task any more."""
        self._tasks = tuple(one for one in self._tasks if one != task)
        for known in (self._statuses, self._received_at_s, self.hellos):
            known.pop(task, None)
        for tasks in (self._awaited, self._failed, self._drained):
            tasks.discard(task)

    @property
    def is_placed(self) -> bool:
        return "placement" in self._timings

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def suspects(self, *, silence_s: float) -> frozenset[TaskId]:
        """Returns tasks that may have died: without a status for `silence_s`, or all once one has failed."""
        has_failed = any(task in self.hellos for task in self._failed)
        oldest_s = math.inf if has_failed else self._clock() - silence_s
        silent = itertools.takewhile(lambda one: one[1] < oldest_s, self._received_at_s.items())
        return frozenset(task for task, _ in silent)

    def peak_memory_bytes(self, task: TaskId) -> int | None:
        """Returns the most memory that the task's process had, by its last status."""
        status = self._statuses.get(task)
        return None if status is None else status.peak_memory_bytes

    def pid_of(self, task: TaskId) -> int | None:
        """Returns the task's process, by its last status; before it has sent one, its agent's."""
        status = self._statuses.get(task)
        return None if status is None else status.pid or None

    def placed(self) -> None:
        self._mark("placement")

    def greeted(self, hello: Hello) -> None:
        self.hellos[hello.task] = hello
        self.received(
            TaskStatus(
                task=hello.task,
                state=TaskState.STARTING,
                pid=hello.pid,
                host=hello.host,
                address=hello.address,
                incarnation=self.incarnation_of(hello.task),
                at_s=time.time(),
            )
        )
        if len(self.hellos) == len(self._tasks):
            self.all_addressed = True
            self.placed()

    def incarnation_of(self, task: TaskId) -> int:
        return self._statuses[task].incarnation if task in self._statuses else 0

    def replaced(self, task: TaskId) -> None:
        """Awaits the next process of a task, in any state of the one before."""
        self.hellos.pop(task, None)
        self._news.pop(task, None)
        incarnation = self.incarnation_of(task) + 1
        self._drained.discard(task)
        self._received_at_s.pop(task, None)
        self._keep(TaskStatus(task=task, state=TaskState.PENDING, pid=0, host="", incarnation=incarnation))

    def _keep(self, status: TaskStatus) -> None:
        task, state = status.task, status.state
        self._statuses[task] = status
        (self._awaited.add if state in BEFORE_SERVICE else self._awaited.discard)(task)
        # A run continues without an evaluator that has failed too often, and would suspect all for ever.
        has_failed = state is TaskState.FAILED and task.task_type is not TaskType.EVALUATOR
        (self._failed.add if has_failed else self._failed.discard)(task)

    @property
    def leaving(self) -> frozenset[TaskId]:
        """The tasks that were told to leave their hosts."""
        return frozenset(task for task, status in self._statuses.items() if status.leaving)

    def drained(self, task: TaskId) -> None:
        """Notes that the task's host is about to be taken away."""
        if task not in self._drained:
            self._drained.add(task)
            self.received(self._statuses[task])

    def received(self, status: TaskStatus) -> None:
        known = self._statuses.get(status.task)
        if known is not None and status.incarnation < known.incarnation:
            return
        if known is not None and known.state.is_terminal:
            # It has ended as it has: only what it says of the files that it leaves may follow.
            notes = tuple(dict.fromkeys([*known.notes, *status.notes]))
            if status.incarnation > known.incarnation or notes == known.notes:
                return
            status = dataclasses.replace(known, notes=notes)
        if status.address is None and status.task in self.hellos:
            status = dataclasses.replace(status, address=self.hellos[status.task].address)
        if status.task in self._drained:
            status = dataclasses.replace(status, leaving="its host is drained")
        self._keep(status)
        self._news[status.task] = status
        if status.task in self.hellos and not status.state.is_terminal:
            self._received_at_s[status.task] = self._clock()
            self._received_at_s.move_to_end(status.task)
        else:
            self._received_at_s.pop(status.task, None)
        if len(self._statuses) == len(self._tasks) and not self._awaited:
            self._mark("tasks_ready")

    def printed(self, printed: Iterable[Printed]) -> None:
        self._printed += printed

    def failed(self, failure: TaskFailure) -> None:
        hello = self.hellos.get(failure.task)
        known = self._statuses.get(failure.task) or TaskStatus(
            task=failure.task,
            state=TaskState.PENDING,
            pid=hello.pid if hello else 0,
            host=hello.host if hello else "",
        )
        failure = dataclasses.replace(failure, step=known.step)
        self.received(dataclasses.replace(known, state=TaskState.FAILED, failure=failure, at_s=failure.at_s))

    def take_update(self) -> GroupUpdate:
        """Returns what is new since the last call."""
        news, self._news = self._news, {}
        printed, self._printed = self._printed, []
        return GroupUpdate(
            statuses=tuple(news.values()),
            printed=tuple(printed),
            all_placed=self.is_placed,
            all_addressed=self.all_addressed,
            timings=tuple(self._timings.items()),
        )

    def _mark(self, phase: str) -> None:
        self._timings.setdefault(phase, self._clock() - self._started_at_s)
