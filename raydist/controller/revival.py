"""What a controller takes over from the record of the one before it, whose process died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raydist.controller.attempt.reached import Reached
from raydist.spec.result import RunResult
from raydist.spec.status import AttemptEnd


@dataclass(frozen=True, kw_only=True)
class Revival:
    """Where a run goes on once its controller is brought back.

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
