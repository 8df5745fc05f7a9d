"""RunLayout: every path name of a run on storage."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydist.spec.tasks import TaskId

_CHECKPOINT_PATTERN = re.compile(r"step-(\d+)-a(\d+)")


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """Path names of one run. All are keys relative to the storage root, with `/` between parts.

    Attributes:
      run: The run's name, which is its folder.
    """

    run: str

    @property
    def record(self) -> str:
        return f"{self.run}/run.json"

    @property
    def events(self) -> str:
        return f"{self.run}/events"

    def event_segment(self, seq: int) -> str:
        return f"{self.events}/{seq:06d}.jsonl"

    @property
    def logs(self) -> str:
        return f"{self.run}/logs"

    def task_logs(self, task: TaskId, *, attempt: int) -> str:
        return f"{self.logs}/{attempt}/{task.path_name}"

    def log_segment(self, task: TaskId, *, attempt: int, seq: int) -> str:
        return f"{self.task_logs(task, attempt=attempt)}/{seq:06d}.log"

    @property
    def metrics(self) -> str:
        return f"{self.run}/metrics"

    def metrics_segment(self, task: TaskId, *, attempt: int, seq: int) -> str:
        return f"{self.metrics}/{attempt}-{task.path_name}-{seq:06d}.parquet"

    @property
    def checkpoints(self) -> str:
        return f"{self.run}/checkpoints"

    def checkpoint(self, *, step: int, attempt: int) -> str:
        """The attempt in the name fences off a chief that was cut away and comes back."""
        return f"{self.checkpoints}/step-{step}-a{attempt}"

    @staticmethod
    def parse_checkpoint(name: str) -> tuple[int, int] | None:
        """Returns (step, attempt) of a checkpoint folder's name, or None for any other name."""
        match = _CHECKPOINT_PATTERN.fullmatch(name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def tensorboard(self) -> str:
        return f"{self.run}/tensorboard"

    @property
    def export(self) -> str:
        return f"{self.run}/export"
