"""How runs of one job under several strategies compare: their loss at equal examples and at equal time."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raydist.runs.scaling import Measurement
from raydist.spec.job import Strategy


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The loss of a run, ascending by step; None for steps at which it had reported none.

    Attributes:
      seconds: Since the run's first report.
    """

    steps: Sequence[int] = ()
    seconds: Sequence[float] = ()
    losses: Sequence[float | None] = ()

    def at_step(self, step: float) -> float | None:
        """Returns the last loss that was reported up to a step; None before the first."""
        return self._before(bisect.bisect_right(self.steps, step))

    def at_second(self, second: float) -> float | None:
        """Returns the last loss that was reported up to a moment; None before the first."""
        return self._before(bisect.bisect_right(self.seconds, second))

    def _before(self, place: int) -> float | None:
        return self.losses[place - 1] if place else None


@dataclass(frozen=True, kw_only=True)
class StrategyRun:
    """One run: its speed, its curve, and how old the weights of its gradients are."""

    measurement: Measurement
    curve: LossCurve
    staleness: int

    @property
    def examples(self) -> int | None:
        """Examples up to its last loss; None without one, and where the batch is not known."""
        batch = self.measurement.batch
        return None if batch is None or not self.curve.steps else batch * self.curve.steps[-1]


def staleness(strategy: Strategy, *, workers: int) -> int:
    """Returns how many updates are made at most between reading weights and applying their gradient.

    This assumes workers that are equally fast. A slower worker's staleness is larger.
    """
    return workers - 1 if strategy is Strategy.PARAMETER_SERVER else 0


def compared(runs: Sequence[StrategyRun]) -> dict[str, Any]:
    """Returns where the losses are compared, and a row of plain values for each run.

    It is at the examples, and the seconds, that each run with a loss has reached.
    """
    examples = min((one.examples for one in runs if one.examples is not None), default=None)
    seconds = min((one.curve.seconds[-1] for one in runs if one.curve.seconds), default=None)
    return {
        "examples": examples,
        "seconds": None if seconds is None else round(seconds, 3),
        "runs": [_row(one, examples=examples, seconds=seconds) for one in runs],
    }


def _row(one: StrategyRun, *, examples: int | None, seconds: float | None) -> dict[str, Any]:
    measurement, batch = one.measurement, one.measurement.batch
    step = None if examples is None or not batch else examples / batch
    found = {
        "strategy": measurement.strategy,
        "run": measurement.run,
        "state": measurement.state,
        "workers": measurement.workers,
        "steps": measurement.steps,
        "examples_per_s": measurement.examples_per_s,
        "loss_at_equal_examples": None if step is None else one.curve.at_step(step),
        "loss_at_equal_time": None if seconds is None else one.curve.at_second(seconds),
        "staleness": one.staleness,
    }
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in found.items()}
