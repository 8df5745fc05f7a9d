"""What the custom loops of all strategies share: a check of the scalars, and their reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import UnsupportedError
from raydist.training.reporting.reporter import Reporter

REPORT_INTERVAL_S = 0.5


def checked_scalars(scalars: Any) -> Mapping[str, Any]:
    """Returns what a step function returned; raises UnsupportedError unless it is a dict of scalars."""
    if not isinstance(scalars, Mapping) or not scalars:
        raise UnsupportedError(
            f"step_fn returned {type(scalars).__name__}; return a dict of scalars, such as {{'loss': loss}}"
        )
    return scalars


class LoopReports:
    """Counts the steps of a loop and reports its scalars, at most twice a second and at its end.

    Attributes:
      done: Steps that the run has behind it. `metrics`: the scalars of the last call.
    """

    def __init__(self, reporter: Reporter, *, done: int, last_step: int, check: Callable[[], None]) -> None:
        """Takes where the loop begins and ends; `check` raises what has failed beside the training."""
        self._reporter = reporter
        self._check = check
        self._last_step = last_step
        self._reported_at_s = time.monotonic()
        self.done = done
        self.metrics: Mapping[str, float] = {}

    def completed(self, count: int, metrics: Mapping[str, float]) -> bool:
        """Takes the means of the scalars over `count` more steps; returns whether it has reported them."""
        self.done += count
        self.metrics = metrics
        self._reporter.advance(self.done, values=metrics)
        self._check()
        is_due = time.monotonic() - self._reported_at_s >= REPORT_INTERVAL_S or self.done == self._last_step
        if is_due:
            self._reported_at_s = time.monotonic()
            self._reporter.report(metrics, step=self.done)
        return is_due
