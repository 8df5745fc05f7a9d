"""MetricRow: one value that a task reported."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raydist.spec.tasks import TaskId


class Scope(enum.Enum):
    """Whose value it is."""

    GLOBAL = "global"  # of all replicas together; the chief writes it, once an epoch or report
    LOCAL = "local"  # one task's running value, at most twice a second


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One value.

    Attributes:
      step: Steps that the run had completed, those before a restore included.
      epoch: Epochs completed; None where the train function knows none.
      wall_time: Unix time, seconds.
      value: A number; NaN and infinities are kept.
    """

    run: str
    attempt: int
    task: TaskId
    step: int
    epoch: int | None
    wall_time: float
    scope: Scope
    name: str
    value: float
