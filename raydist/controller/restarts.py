"""New attempts that are planned: the chief saves first, and no failure is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from raydist.controller.attempt import Attempt
from raydist.controller.imbalance import Imbalance
from raydist.outcome.status import TaskState, TaskStatus
from raydist.planning.plan import Plan
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.spec.text import listed
from raydist.storage.layout import RunLayout


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A chief that was asked to save.

    Attributes:
      cause: Why.
      checkpoint_before: Its newest checkpoint by then; None without one.
    """

    cause: Cause
    checkpoint_before: str | None

    def is_done(self, chief: TaskStatus) -> bool:
        if chief.checkpoint == self.checkpoint_before:
            return False
        # One that was under way already may lack the last steps.
        return not self.cause.is_certain or saved_step(chief.checkpoint) >= chief.step


def saved_step(checkpoint: str | None) -> int:
    """Returns the step of a checkpoint, by its URI; 0 without one."""
    step, _ = RunLayout.parse_checkpoint((checkpoint or "").rpartition("/")[2]) or (0, 0)
    return step


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a new attempt is planned.

    Attributes:
      tasks: The tasks that it is about.
      what: Half a sentence, which `: training was restarted` continues.
      needs_checkpoint: Whether it is dropped where nothing is saved: what it is good for is not worth a step.
      speeds: What the plan of the new attempt has in place of its own; None leaves them.
      can_save: Whether the chief, which saves between two steps, can come to the end of one.
      is_certain: Whether it cannot go away, so that each step after the save would be lost.
    """

    tasks: tuple[TaskId, ...]
    what: str
    needs_checkpoint: bool = False
    speeds: Mapping[str, float] | None = None
    can_save: bool = True
    is_certain: bool = False


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A planned new attempt.

    Attributes:
      stopped_at_s: Unix time from which nothing was trained.
      step: The step that training continued from; None until its next step is done.
      pause_s: Seconds without training; None until then.
    """

    cause: Cause
    stopped_at_s: float
    step: int | None = None
    pause_s: float | None = None

    def sentence(self) -> str:
        """Returns what happened, and what it cost once that is known."""
        what = f"{self.cause.what}: training was restarted"
        if self.step is None:
            return what
        begin = f"from the checkpoint of step {self.step}" if self.step else "from the beginning"
        return f"{what} {begin} after {self.pause_s:.1f} s"


def wanted(attempt: Attempt, *, plan: Plan, room: int, imbalance: Imbalance | None) -> Cause | None:
    """Returns why `attempt` is to be followed by a new one, while it trains well; None where it is not.

    Args:
      plan: That of the attempt. `room`: how many workers the cluster has room for.
      imbalance: By how much other shares of the batch would be faster.
    """
    is_connected = _is_connected(attempt, chief_of(role.task_type for role in plan.roles))
    follows = plan.follows_workers and is_connected
    if any(not follows or task.task_type is TaskType.DATA_WORKER for task in attempt.moved):
        return _moved(attempt, can_save=is_connected and _has_worker_in_service(attempt))
    leaving = [task for task in attempt.leaving if not attempt.outlives(task, plan.strategy)]
    if leaving:
        why = attempt.statuses[leaving[0]].leaving
        return Cause(tasks=tuple(leaving), what=f"{listed(leaving)} had to leave ({why})", is_certain=True)
    if room > plan.num_workers:
        what = f"there is room for {room} workers instead of {plan.num_workers}"
        return Cause(tasks=(), what=what, needs_checkpoint=True)
    if imbalance is not None:
        what = imbalance.sentence()
        return Cause(tasks=(), what=what, needs_checkpoint=True, speeds=imbalance.speeds)
    return None


def resumed(restarts: tuple[Restart, ...], chief: TaskStatus | None, *, at_s: float) -> tuple[Restart, ...]:
    """Returns them with the cost of the last one, once the chief of the new attempt has done a step.

    Where a program saves by itself it is not known.
    """
    *before, last = restarts or (None,)
    if last is None or last.step is not None or chief is None or chief.first_step_at_s is None:
        return restarts
    if chief.saves_by_itself:
        return restarts
    pause_s = max(0.0, at_s - last.stopped_at_s)
    return (*before, dataclasses.replace(last, step=chief.restored_step, pause_s=pause_s))


def _is_connected(attempt: Attempt, chief: TaskId) -> bool:
    """Whether the chief has built its strategy: until then TensorFlow waits at the first addresses."""
    status = attempt.statuses.get(chief)
    return status is not None and status.state is TaskState.RUNNING and not status.is_joining


def _moved(attempt: Attempt, *, can_save: bool) -> Cause:
    """The chief waits at the first addresses, or fences do not let the workers' new hosts through."""
    before = [_host(attempt.addresses[task]) for task in attempt.moved]
    now = [_host(attempt.statuses[task].address or "") for task in attempt.moved]
    where = "at another port" if before == now else "on another host"
    what = f"{listed(attempt.moved)} came back {where}"
    return Cause(tasks=attempt.moved, what=what, can_save=can_save)


def _has_worker_in_service(attempt: Attempt) -> bool:
    return any(
        task.task_type is TaskType.WORKER
        and attempt.state_of(task) is TaskState.RUNNING
        and task not in attempt.moved
        for task in attempt.needed
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0]
