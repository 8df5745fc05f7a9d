"""What a run has reached over all attempts, also when its controller died and another one takes over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raydist.outcome.result import Evaluation, RunResult
from raydist.outcome.status import AttemptEnd, TaskStatus
from raydist.spec.best import Best, better, is_of_validation
from raydist.spec.tasks import TaskId, TaskType


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What the run has reached, over all attempts. Immutable.

    Attributes:
      steps: The highest step completed.
      metrics: The chief's last report.
      best: The best value that the chief reported, or the evaluator; None before the first.
      checkpoint: URI of the newest checkpoint that the chief committed; None before the first.
      evaluation: The evaluator's last result; None before the first, and without an evaluator.
      repeated: Steps that were applied twice, by attempt.
      notes: What the tasks chose on the user's behalf: a dict of sentences, as each is told once.
    """

    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Best | None = None
    checkpoint: str | None = None
    evaluation: Evaluation | None = None
    repeated: Mapping[int, int] = field(default_factory=dict)
    notes: Mapping[str, None] = field(default_factory=dict)

    @property
    def steps_repeated(self) -> int:
        return sum(self.repeated.values())

    def updated(
        self, statuses: Sequence[TaskStatus], *, chief: TaskId, attempt: int, keep_best: str | None
    ) -> Reached:
        """Returns it with what the tasks of attempt number `attempt` report.

        Args:
          keep_best: As in the job.
        """
        steps = max((status.step for status in statuses), default=0)
        new = [note for status in statuses for note in status.notes if note not in self.notes]
        notes = {**self.notes, **dict.fromkeys(new)} if new else self.notes
        reached = dataclasses.replace(self, steps=max(self.steps, steps), notes=notes)
        for status in statuses:
            if status.task.index != chief.index:  # neither the chief nor the evaluator
                continue
            if status.task == chief:
                reached = reached._reported_by_chief(status, attempt, keep_best)
            elif status.task.task_type is TaskType.EVALUATOR and status.metrics:
                found = Evaluation(step=status.step, lag_steps=status.lag_steps, metrics=status.metrics)
                best = better(reached.best, _wanted(status.best, keep_best), keep_best=keep_best)
                reached = dataclasses.replace(reached, evaluation=found, best=best)
        return reached

    def with_checkpoint(self, uri: str, *, step: int) -> Reached:
        """Returns it with the newest checkpoint on storage, which was committed after `step` steps."""
        return dataclasses.replace(self, checkpoint=uri, steps=max(self.steps, step))

    def _reported_by_chief(self, status: TaskStatus, attempt: int, keep_best: str | None) -> Reached:
        repeated = max(status.steps_repeated, self.repeated.get(attempt, 0))
        return dataclasses.replace(
            self,
            metrics=status.metrics or self.metrics,
            best=better(self.best, status.best, keep_best=keep_best),
            checkpoint=status.checkpoint or self.checkpoint,
            repeated={**self.repeated, attempt: repeated},
        )


def _wanted(best: Best | None, keep_best: str | None) -> Best | None:
    """Returns the evaluator's best value if it counts; without --keep-best only val_loss does."""
    if best is None:
        return None
    is_wanted = best.name == "val_loss" if keep_best is None else is_of_validation(best.name)
    return best if is_wanted else None


@dataclass(frozen=True, kw_only=True)
class Revival:
    """Where a run continues once its controller is brought back.

    Attributes:
      first_attempt: Number of the attempt to begin with; those before have gone with the controller.
      reached: What the run had reached.
      notes: The notes of the run so far, and that its controller died, which no budget pays for.
      history: What ended the attempts that the budget has paid for.
      timings: Seconds to the end of each phase that the run got to, `total` left out.
      spent_s: Seconds since the run was submitted.
    """

    first_attempt: int
    reached: Reached
    notes: tuple[str, ...] = ()
    history: tuple[AttemptEnd, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    spent_s: float = 0.0

    @classmethod
    def of(cls, last: RunResult, *, history: Sequence[AttemptEnd], spent_s: float) -> Revival:
        """Takes the last run.json."""
        lost, number = last.attempts - 1, last.attempts
        note = (
            f"attempt {lost} was lost with the run's controller, whose process died; the run was "
            f"taken up again as attempt {number}, which does not count as a failure"
        )
        return cls(
            first_attempt=number,
            reached=Reached(
                steps=last.steps,
                metrics=last.metrics,
                best=last.best,
                checkpoint=last.checkpoint,
                evaluation=last.evaluation,
                repeated={lost: last.steps_repeated},
            ),
            notes=(*last.notes, note),
            history=tuple(history),
            timings={
                name: seconds
                for name, seconds in last.timings.items()
                if seconds is not None and name != "total"
            },
            spent_s=spent_s,
        )
