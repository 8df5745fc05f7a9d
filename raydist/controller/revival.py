"""What a controller takes over from the record of the one before it, whose process died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydist.controller.attempt.reached import Evaluation, Reached
from raydist.controller.failures.failure_policy import AttemptEnd
from raydist.errors import ClusterError
from raydist.spec.status import FailureKind, TaskFailure
from raydist.spec.tasks import TaskId


@dataclass(frozen=True, kw_only=True)
class Revival:
    """Where a run goes on once its controller is brought back.

    Attributes:
      first_attempt: Number of the attempt to begin with; those before have gone with the controller.
      reached: What the run had reached.
      notes: What the run had to say so far, and that its controller died, which no budget pays for.
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
    def from_record(cls, record: Mapping[str, Any], *, spent_s: float) -> Revival:
        """Takes run.json as it was written last."""
        number = int(record["attempts"])
        note = (
            f"attempt {number - 1} was lost with the run's controller, whose process died; the run was "
            f"taken up again as attempt {number}, which does not count as a failure"
        )
        return cls(
            first_attempt=number,
            reached=_reached_from(record, attempt=number - 1),
            notes=(*record["notes"], note),
            history=tuple(_end_from(end) for end in record.get("failures", ())),
            timings={
                name: float(seconds)
                for name, seconds in record["timings"].items()
                if seconds is not None and name != "total"
            },
            spent_s=spent_s,
        )


def describe_history(history: Sequence[AttemptEnd]) -> list[dict[str, Any]]:
    """Returns what ended each attempt as run.json keeps it, so that a revived controller goes on counting."""
    return [_describe_end(end) for end in history]


def metrics_from(stored: Mapping[str, float | None]) -> dict[str, float]:
    """Returns metrics as they were before JSON, which has null for NaN."""
    return {name: float("nan") if value is None else float(value) for name, value in stored.items()}


def evaluation_from(stored: Mapping[str, Any] | None) -> Evaluation | None:
    if stored is None:
        return None
    return Evaluation(
        step=int(stored["step"]), lag_steps=stored["lag_steps"], metrics=metrics_from(stored["metrics"])
    )


def _reached_from(record: Mapping[str, Any], *, attempt: int) -> Reached:
    return Reached(
        steps=int(record["steps"]),
        metrics=metrics_from(record["metrics"]),
        checkpoint=record["checkpoint"],
        evaluation=evaluation_from(record["evaluation"]),
        repeated={attempt: int(record["steps_repeated"])},
    )


def _describe_end(end: AttemptEnd) -> dict[str, Any]:
    if not isinstance(end, TaskFailure):
        return {"kind": None, "message": str(end)}
    return {
        "kind": end.kind.value,
        "message": end.message,
        "task": str(end.task),
        "type": end.error_type,
        "step": end.step,
        "at_s": end.at_s,
    }


def _end_from(stored: Mapping[str, Any]) -> AttemptEnd:
    if stored["kind"] is None:
        return ClusterError(stored["message"])
    return TaskFailure(
        task=TaskId.parse(stored["task"]),
        kind=FailureKind(stored["kind"]),
        error_type=stored["type"],
        message=stored["message"],
        step=int(stored["step"]),
        at_s=float(stored["at_s"]),
    )
