"""Which dead tasks are replaced while their attempt continues, and what became of each of them."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from raydist.controller.attempt import Attempt
from raydist.outcome.status import FailureKind, TaskFailure
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskId, TaskType

# A task that dies this often in a row, each time this soon after it was back, is given up.
MAX_QUICK_DEATHS = 5
QUICK_S = 60.0
# Of more deaths than these, the run's notes give the number.
MAX_TOLD_DEATHS = 10


@dataclass(frozen=True, kw_only=True)
class Death:
    """A task's death that its attempt outlived.

    Attributes:
      step: What the run had reached.
      at_s: Unix time at which the death became known.
      back_after_s: Seconds from then until the task was back; None while it is not.
      outcome: What became of the task: half a sentence.
    """

    failure: TaskFailure
    attempt: int
    step: int
    at_s: float
    back_after_s: float | None = None
    outcome: str = "not back in service"
    is_given_up: bool = False

    @property
    def task(self) -> TaskId:
        return self.failure.task

    @property
    def is_told(self) -> bool:
        """Whether there is anything to report besides the death itself."""
        return self.is_given_up or self.back_after_s is not None

    def sentence(self) -> str:
        """Returns `worker/1 died (attempt 0, step 120): its process died: …; back in service after 4 s`."""
        where = f"attempt {self.attempt}, step {self.step}"
        return f"{self.task} died ({where}): {self.failure.message}; {self.outcome}"


@dataclass
class Deaths:
    """The deaths that the run's attempts outlived, the oldest first.

    Attributes:
      told: Those of which there is more to report than the death itself, in the order in which it came.
    """

    all: list[Death] = field(default_factory=list)
    told: list[Death] = field(default_factory=list)
    _places: defaultdict[TaskId, list[int]] = field(default_factory=lambda: defaultdict(list))  # in `all`

    def add(self, death: Death) -> None:
        """Takes in a death whose task is replaced."""
        self._end(death.task, attempt=death.attempt, outcome="its replacement died too")
        self._places[death.task].append(len(self.all))
        self.all.append(death)

    def give_up(self, death: Death) -> None:
        """Takes in a death whose task is not replaced any more."""
        outcome = f"given up, as its last {MAX_QUICK_DEATHS} replacements died within {QUICK_S:g} s"
        death = dataclasses.replace(death, outcome=outcome, is_given_up=True)
        self.add(death)
        self.told.append(death)

    def end(self, tasks: Iterable[TaskId], attempt: Attempt, *, at_s: float) -> None:
        """Takes in that `tasks` are back."""
        for task in tasks:
            where = "at another address" if task in attempt.moved else "in service"
            self._end(task, attempt=attempt.number, outcome=f"back {where}", back_at_s=at_s)

    def sentences(self) -> tuple[str, ...]:
        """Returns a sentence for each death; one about all the rest where they are many."""
        sentences = tuple(death.sentence() for death in self.all[:MAX_TOLD_DEATHS])
        rest = self.all[MAX_TOLD_DEATHS:]
        if not rest:
            return sentences
        counts = Counter(death.task for death in rest)
        named = ", ".join(f"{task}: {counts[task]}" for task in sorted(counts, key=str))
        num_back = sum(death.back_after_s is not None for death in rest)
        all_given_up = {death.task for death in self.all if death.is_given_up}
        given_up = "".join(f"; {task} was given up" for task in counts if task in all_given_up)
        return (
            *sentences,
            f"tasks died {len(rest)} more times ({named}) and came back {num_back} times{given_up}",
        )

    def num_quick(self, task: TaskId, *, attempt: int, at_s: float) -> int:
        """How many deaths in a row came soon after the task was back, one at `at_s` included."""
        num_quick = 0
        for place in reversed(self._places[task]):
            death = self.all[place]
            if death.back_after_s is None:
                is_quick = death.attempt == attempt  # the next process died before it was back
            else:
                is_quick = at_s - (death.at_s + death.back_after_s) <= QUICK_S
            if not is_quick:
                break
            num_quick += 1
            attempt, at_s = death.attempt, death.at_s
        return num_quick

    def _end(self, task: TaskId, *, attempt: int, outcome: str, back_at_s: float | None = None) -> None:
        """Notes what became of the task's last death in that attempt, unless it is over and done with."""
        if not self._places[task]:
            return
        place = self._places[task][-1]
        last = self.all[place]
        if last.attempt != attempt or last.is_told:
            return
        changes: dict[str, Any] = {"outcome": outcome}
        if back_at_s is not None:
            seconds = max(0.0, back_at_s - last.at_s)
            changes = {"outcome": f"{outcome} after {seconds:.1f} s", "back_after_s": seconds}
        self.all[place] = last = dataclasses.replace(last, **changes)
        if last.is_told:
            self.told.append(last)


def replace_dead(
    attempt: Attempt, deaths: Deaths, *, strategy: Strategy, at_s: float, least_workers: int | None = None
) -> tuple[TaskId, ...]:
    """Returns the tasks to be replaced, as `attempt` and `deaths` have it then.

    What stays among the attempt's failures ends it; then nothing is replaced.

    Args:
      at_s: Unix time at which the attempt's failures became known.
      least_workers: How many the attempt continues with; None for all that it has.
    """
    for death in deaths.all:
        is_data_workers = death.attempt == attempt.number and death.task.task_type is TaskType.DATA_WORKER
        if is_data_workers and not attempt.outlives(death.task, strategy):
            attempt.declare_lost(death.failure)  # data are divided since, maybe before that was known
    failures = attempt.failures
    if not failures or not all(is_outlived(one, strategy=strategy, attempt=attempt) for one in failures):
        return ()
    replaced = []
    for failure in failures:
        task, number = failure.task, attempt.number
        death = Death(failure=failure, attempt=number, step=attempt.step, at_s=at_s)
        if deaths.num_quick(task, attempt=number, at_s=at_s) < MAX_QUICK_DEATHS:
            attempt.await_replacement(failure)
            deaths.add(death)
            replaced.append(task)
        # Training continues without an evaluator, and with fewer workers where the user says so.
        elif task.task_type is TaskType.EVALUATOR or (
            task.task_type is TaskType.WORKER and _num_workers(attempt) > (least_workers or sys.maxsize)
        ):
            attempt.dismiss([task])
            deaths.give_up(death)
    return tuple(replaced)


def is_outlived(failure: TaskFailure, *, strategy: Strategy, attempt: Attempt) -> bool:
    """Whether the attempt can continue while the dead task is replaced.

    The coordinator gives a dead worker's steps to others and connects to the worker again, and no task waits
    for an evaluator. A ps has taken its variables with it, and a data worker that makes a part of the data
    the elements that it had. Before all addresses are known there is no place in TensorFlow's cluster that a
    new process could take.
    """
    return (
        attempt.outlives(failure.task, strategy)
        and (failure.kind is FailureKind.LOST or _is_failed_replacement(failure, attempt))
        and attempt.is_addressed
    )


def _num_workers(attempt: Attempt) -> int:
    return sum(task.task_type is TaskType.WORKER for task in attempt.needed)


def _is_failed_replacement(failure: TaskFailure, attempt: Attempt) -> bool:
    """Whether a process that was to take a dead one's place could not start there."""
    status = attempt.statuses.get(failure.task)
    return failure.kind is FailureKind.START and status is not None and status.incarnation > 0
