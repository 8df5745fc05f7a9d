"""Whether the tasks of an attempt still live and train: no task may hang in silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raydist.controller.attempt.attempt import Attempt
from raydist.spec.status import FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.tasks import TaskId

# A task sends a heartbeat twice a second, from a thread of its own. None comes for this many seconds only if
# the process is stopped or cut off, or if code holds Python's lock that long.
SILENCE_S = 60.0
# A task without a heartbeat for this long is named where others fail because of it.
SUSPICIOUS_S = 5.0
# Of the time between two looks no more than this counts: who was suspended, has not watched.
_LONGEST_LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    """When each task sent its last heartbeat, and when any of them made progress last. Immutable.

    Times are seconds of watching.

    Attributes:
      stall_timeout_s: How long training may stand still.
      looked_at_s: The clock at the last look; None before the first.
      watched_s: For how long the attempt has been watched.
      heartbeat_at_s: When each training task sent its last heartbeat.
      moved_at_s: When any of the training tasks went on last.
      progress: What the tasks had done by then: steps and beats.
    """

    stall_timeout_s: float
    looked_at_s: float | None = None
    watched_s: float = 0.0
    heartbeat_at_s: Mapping[TaskId, float] = field(default_factory=dict)
    moved_at_s: float = 0.0
    progress: frozenset[tuple[TaskId, int, int]] = frozenset()

    def updated(self, attempt: Attempt, news: Sequence[TaskStatus], *, now_s: float) -> Watchdog:
        """Returns it with what `attempt`, which has taken in `news`, shows at `now_s` of a steady clock."""
        since_s = 0.0 if self.looked_at_s is None else now_s - self.looked_at_s
        watched_s = self.watched_s + min(since_s, _LONGEST_LOOK_S)
        training = [
            status
            for task, status in attempt.statuses.items()
            if status.state is TaskState.RUNNING and task in attempt.needed
        ]
        senders = {status.task for status in news}
        heartbeat_at_s = {
            status.task: watched_s
            if status.task in senders
            else self.heartbeat_at_s.get(status.task, watched_s)
            for status in training
            if not status.is_joining  # TensorFlow itself ends that by --start-timeout
        }
        progress = frozenset((status.task, status.step, status.beats) for status in training)
        has_moved = progress != self.progress or not any(map(_awaits_steps, training))
        return dataclasses.replace(
            self,
            looked_at_s=now_s,
            watched_s=watched_s,
            heartbeat_at_s=heartbeat_at_s,
            moved_at_s=watched_s if has_moved else self.moved_at_s,
            progress=progress,
        )

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

    def _silent_for(self, limit_s: float) -> TaskFailure | None:
        silence_s = {
            task: self.watched_s - heartbeat_at_s for task, heartbeat_at_s in self.heartbeat_at_s.items()
        }
        task = max(silence_s, key=lambda each: silence_s[each], default=None)
        if task is None or silence_s[task] < limit_s:
            return None
        return TaskFailure(
            task=task,
            kind=FailureKind.LOST,
            error_type="SilentTask",
            message=f"it has sent no heartbeat for {silence_s[task]:.0f} s: its process is stopped, "
            "or its host is cut off",
            is_host_in_doubt=True,
        )


def _awaits_steps(status: TaskStatus) -> bool:
    """Whether the task has reported that steps follow: what users do outside of them may take long."""
    if status.num_steps is not None:
        return status.step < status.num_steps
    return status.num_epochs is not None and (status.epoch or 0) < status.num_epochs
