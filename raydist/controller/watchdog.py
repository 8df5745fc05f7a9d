"""Whether the tasks of an attempt still live and train: no task may hang in silence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydist.controller.attempt import Attempt
from raydist.outcome.status import CallState, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.tasks import TaskId

# A task sends a heartbeat twice a second, from a thread of its own. None comes for this many seconds only if
# the process is stopped or cut off, or if code holds Python's lock that long.
SILENCE_S = 60.0
# A task without a heartbeat for this long is named where others fail because of it.
SUSPICIOUS_S = 5.0
# Of the time between two looks no more than this counts: who was suspended, has not watched.
_LONGEST_LOOK_S = 5.0
# Agents give up a run of which they hear nothing for 30 s. What they do then is heard within this time.
_SUSPENDED_S = 20.0
_HEARD_S = 30.0


@dataclass(kw_only=True)
class Watchdog:
    """When each task sent its last heartbeat, and when any of them made progress last.

    Times are seconds of watching.

    Attributes:
      stall_timeout_s: How long training may stand still.
      looked_at_s: The clock at the last look; None before the first.
      watched_s: For how long the attempt has been watched.
      heartbeat_at_s: When each training task sent its last heartbeat, the oldest first.
      moved_at_s: When a training task last made progress.
      progress: The training tasks, each with the status that told of its last step or beat.
      awaiting: The training tasks that have said that steps follow.
      num_dismissed: How many tasks of the attempt are not looked at.
      suspended_s: How long nobody looked before `resumed_at_s`, where that was long enough to lose the tasks.
    """

    stall_timeout_s: float
    looked_at_s: float | None = None
    watched_s: float = 0.0
    heartbeat_at_s: OrderedDict[TaskId, float] = field(default_factory=OrderedDict)
    moved_at_s: float = 0.0
    progress: dict[TaskId, TaskStatus] = field(default_factory=dict)
    awaiting: set[TaskId] = field(default_factory=set)
    num_dismissed: int = 0
    suspended_s: float = 0.0
    resumed_at_s: float = float("-inf")

    def look(self, attempt: Attempt, news: Sequence[TaskStatus], *, now_s: float) -> None:
        """Takes in what is new at `now_s` of a steady clock.

        Args:
          news: The newest status of each task that has sent one since, or has another state in `attempt`.
        """
        since_s = 0.0 if self.looked_at_s is None else now_s - self.looked_at_s
        self.looked_at_s = now_s
        self.watched_s += min(since_s, _LONGEST_LOOK_S)
        if since_s >= _SUSPENDED_S:
            self.suspended_s, self.resumed_at_s = since_s, self.watched_s
        has_moved = False
        ended = list(attempt.dismissed) if len(attempt.dismissed) > self.num_dismissed else []
        self.num_dismissed = len(attempt.dismissed)
        for status in news:
            if status.state is TaskState.RUNNING and status.task not in attempt.dismissed:
                has_moved |= self._listen(status)
            else:
                ended.append(status.task)
        for task in ended:
            self.heartbeat_at_s.pop(task, None)
            self.awaiting.discard(task)
            has_moved |= self.progress.pop(task, None) is not None
        if has_moved or not self.awaiting:
            self.moved_at_s = self.watched_s

    def _listen(self, status: TaskStatus) -> bool:
        """Takes in what a training task says; returns whether it made progress."""
        task = status.task
        if status.is_joining:  # TensorFlow itself ends that by --start-timeout
            self.heartbeat_at_s.pop(task, None)
        else:
            self.heartbeat_at_s[task] = self.watched_s
            self.heartbeat_at_s.move_to_end(task)
        (self.awaiting.add if _awaits_steps(status) else self.awaiting.discard)(task)
        known = self.progress.get(task)
        if known is not None and _place(known) == _place(status):
            return False
        self.progress[task] = status
        return True

    def silent(self) -> TaskFailure | None:
        """Returns the failure of the task whose last heartbeat is oldest, if it is too old."""
        return self._silent_for(min(SILENCE_S, self.stall_timeout_s))

    def suspect(self) -> TaskFailure | None:
        """Returns the failure of a task whose missing heartbeats may explain why others failed."""
        return self._silent_for(SUSPICIOUS_S)

    @property
    def is_stalled(self) -> bool:
        """Whether no task has made progress for too long."""
        return self.watched_s - self.moved_at_s >= self.stall_timeout_s

    @property
    def was_suspended(self) -> bool:
        """Whether the watcher itself stood still a moment ago, so that its tasks may have given it up."""
        return self.watched_s - self.resumed_at_s < _HEARD_S

    def _silent_for(self, limit_s: float) -> TaskFailure | None:
        task = next(iter(self.heartbeat_at_s), None)
        if task is None or self.watched_s - self.heartbeat_at_s[task] < limit_s:
            return None
        silence_s = self.watched_s - self.heartbeat_at_s[task]
        return TaskFailure(
            task=task,
            kind=FailureKind.LOST,
            error_type="SilentTask",
            message=f"it has sent no heartbeat for {silence_s:.0f} s: its process is stopped, "
            "or its host is cut off",
            is_host_in_doubt=True,
        )


def _place(status: TaskStatus) -> tuple[int, ...]:
    """Returns what changes where a task makes progress."""
    return status.step, status.beats, 0 if status.collective is None else status.collective.number


def _awaits_steps(status: TaskStatus) -> bool:
    """Whether the task has reported that steps follow, or waits for others to make a call that it makes.

    What users do outside of that may take long. Before the first step, nobody may know how many follow.
    """
    call = status.collective
    if call is not None:
        is_before_steps = call.state is CallState.INSIDE and status.first_step_at_s is None
        if call.state is CallState.MEETING or is_before_steps:
            return True
    if status.num_steps is not None:
        return status.step < status.num_steps
    return status.num_epochs is not None and (status.epoch or 0) < status.num_epochs
