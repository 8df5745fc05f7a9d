"""When a checkpoint is due."""

from __future__ import annotations

from raydist.spec.job import CheckpointEvery, CheckpointUnit


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
