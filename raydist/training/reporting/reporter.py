"""Reporter: how far this task is, and what it has found, for the controller and for the run's metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

from raydist.metrics.parquet import MetricsWriter
from raydist.metrics.records import MetricRow, Scope
from raydist.planning.assignment import TaskAssignment
from raydist.spec.tasks import TaskType
from raydist.training.reporting.progress import TaskProgress
from raydist.training.reporting.tensorboard import TensorBoardWriter


class Reporter:
    """The one place that training tells its steps and values to.

    Attributes:
      progress: What the controller sees of this task.
      is_chief: Whether this task writes for all.
      step: Steps completed by the run, as far as this task knows.
      first_step: Where the next training of the train function begins to count. Behind `step` in a resumed
        run, which goes through trainings that are done.
      reports_every_fit: Whether a `fit` outside of every strategy is the run's training too, as in a script.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        *,
        progress: TaskProgress,
        metrics: MetricsWriter,
        board: TensorBoardWriter | None = None,
    ) -> None:
        """Takes where values go; `board` is None in a task that writes no event files."""
        self.task = assignment.task
        self.is_chief = assignment.is_chief
        self.progress = progress
        self.step = 0
        self.first_step = 0
        self.reports_every_fit = False
        self.num_workers = assignment.num_workers
        self._run_name = assignment.job.name
        self._attempt = assignment.attempt
        self._keep_best = assignment.job.keep_best
        self._metrics = metrics
        self._board = board
        # Values that hold for the whole run are written once. An evaluator's are nobody else's.
        self._writes_global = self.is_chief or self.task.task_type is TaskType.EVALUATOR

    def advance(
        self,
        step: int,
        *,
        epoch: int | None = None,
        values: Mapping[str, float] | None = None,
        is_resumable: bool = True,
    ) -> None:
        """Tells that `step` steps and `epoch` epochs are completed.

        Args:
          values: This task's own values as of now, for its status.
          is_resumable: False for steps that no checkpoint holds, and that a new attempt would repeat.
        """
        self.step = max(self.step, step)
        tell = self.progress.completed if is_resumable else self.progress.counted
        tell(step, epoch=epoch, local_metrics=values)

    def report(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        epoch: int | None = None,
        scope: Scope = Scope.GLOBAL,
    ) -> None:
        """Records values that hold after `step` steps, of this task or, called in every task, of the run."""
        self.step = max(self.step, step)
        if scope is Scope.GLOBAL:
            self.progress.reported(values, step=step, keep_best=self._keep_best)
            if not self._writes_global:
                return
        now = time.time()
        self._metrics.append(
            MetricRow(
                run=self._run_name,
                attempt=self._attempt,
                task=self.task,
                step=step,
                epoch=epoch,
                wall_time=now,
                scope=scope,
                name=name,
                value=value,
            )
            for name, value in values.items()
        )
        if self._board is not None:
            self._board.append(
                values,
                step=step,
                of_epoch=epoch is not None,
                is_running=scope is Scope.LOCAL,
                restored_step=self.progress.restored_step,
                wall_time=now,
            )

    def note(self, sentence: str) -> None:
        """Tells the user what was chosen on their behalf, in the task's log and once in the run's notes."""
        print(f"raydist: {sentence}", flush=True)
        self.progress.note(sentence)


class _Current:
    """The reporter of the session that is open in this process, for code that Keras calls."""

    reporter: Reporter | None = None


def current() -> Reporter | None:
    """Returns the reporter of the open session; None outside of one."""
    return _Current.reporter


def set_current(reporter: Reporter | None) -> None:
    """Makes it the current one; None at the session's end."""
    _Current.reporter = reporter


def note(sentence: str) -> None:
    """Adds a sentence to the run's notes, once; does nothing outside of a session."""
    reporter = _Current.reporter
    if reporter is not None and sentence not in reporter.progress.status().notes:
        reporter.note(sentence)
