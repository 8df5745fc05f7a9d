"""When a checkpoint is due, and when the state is kept in memory."""

from __future__ import annotations

import math

from raydist.spec.job import CheckpointEvery, CheckpointUnit

# What keeping may take of the time; with more of it, more calls go by in between.
MOST_SHARE = 0.03


class CheckpointSchedule:
    """When the next checkpoint is due. By steps and epochs all tasks decide alike, by seconds the chief."""

    def __init__(self, every: CheckpointEvery, *, each_epoch: bool = False) -> None:
        """Takes what is asked for; `each_epoch`: at each epoch's end as well, to find the best one."""
        self._every = every
        self._each_epoch = each_epoch

    def is_due(self, *, step_before: int, step: int) -> bool:
        """Whether a checkpoint is due within an epoch, after a call that took the run to `step`."""
        count = self._every.count
        return self._every.unit is CheckpointUnit.STEPS and step_before // count < step // count

    def is_due_after(self, seconds: float) -> bool:
        """Whether one is due when the last one was that long ago."""
        return self._every.unit is CheckpointUnit.SECONDS and seconds >= self._every.count

    def steps_left(self, step: int) -> int:
        """Returns how many steps may run from `step` on before one is due, at least 1."""
        count = self._every.count
        return count - step % count if self._every.unit is CheckpointUnit.STEPS else 1 << 30

    def is_due_at_epoch_end(self, epoch: int) -> bool:
        """Whether one is due when `epoch` epochs are completed."""
        is_asked_for = self._every.unit is CheckpointUnit.EPOCHS and epoch % self._every.count == 0
        return is_asked_for or self._each_epoch


class KeepSchedule:
    """Decides after which calls of steps the state is kept, alike in all workers, once they have agreed."""

    def __init__(self) -> None:
        self._every: int | None = None
        self._num_calls = 0
        self._kept_at = 0
        self._has_kept = self._has_ended = False
        self._costs_s: list[float] = []

    def called(self) -> None:
        """Counts a call."""
        self._num_calls += 1

    @property
    def is_due(self) -> bool:
        return self._every is not None and self._num_calls - self._kept_at >= self._every

    def kept(self, cost_s: float) -> None:
        """Takes what it has cost this worker's training to keep a state after the last call."""
        self._kept_at = self._num_calls
        if self._has_kept:  # the first time traces
            self._costs_s.append(cost_s)
        self._has_kept = True

    @property
    def cost_s(self) -> float:
        """The least that it has cost this worker's training since `agreed`; 0 while that is not known.

        Infinite once nothing is kept any more.
        """
        return math.inf if self._has_ended else min(self._costs_s, default=0.0)

    def end(self) -> None:
        """Has all workers keep no more, once they agree again."""
        self._has_ended = True

    def agreed(self, cost_s: float, *, call_s: float) -> None:
        """Takes what all workers have agreed on: what keeping a state costs, and how long a call takes."""
        if math.isinf(cost_s):
            self._every = None
        elif cost_s > 0 and call_s > 0:
            self._every = max(1, round(cost_s / (MOST_SHARE * call_s)))
        else:
            self._every = self._every or 1
        self._costs_s.clear()
