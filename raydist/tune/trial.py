"""TrialRun: the run of one trial, whose reports are waited for one after another."""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from raydist.errors import RaydistError
from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState

Event = Mapping[str, Any]

# How soon the end of a run is noticed that sends no event of it.
_LOOK_S = 1.0
# How long a run that is stopped may take: its tasks get 20 s, and what does not end is killed.
_STOP_TIMEOUT_S = 120.0


class Handle(Protocol):
    """What a TrialRun needs of a RunHandle."""

    def stop(self) -> None:
        """Asks the run to stop."""

    def result(self, *, timeout: float | None = None) -> RunResult:
        """Waits for the end; raises TimeoutError if it has not ended by then, RaydistError if it failed."""


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """What a trial tells of itself.

    Attributes:
      iteration: Epochs completed; for a job without epochs the number of reports.
      metrics: All that were reported so far, each with its newest value.
      checkpoint: URI of the newest checkpoint; None before the first.
    """

    iteration: int
    step: int
    epoch: int | None
    metrics: Mapping[str, float]
    checkpoint: str | None


class TrialRun:
    """The run of one trial. All methods are for one thread.

    Attributes:
      checkpoint: URI of the newest checkpoint that is known; None before the first.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[Event], None]], Handle],
        *,
        checkpoint: str | None = None,
        metrics: Mapping[str, float] | None = None,
        epoch: int | None = None,
        iteration: int = 0,
    ) -> None:
        """Starts the run.

        Args:
          submit: Starts it with an `on_event`.
          checkpoint: The one that the run continues from; None for its beginning.
          metrics: Values as of then; `epoch`: epochs completed then, None or 0 where none are known.
          iteration: Of the last report, for a job without epochs.
        """
        self.checkpoint = checkpoint
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._metrics = dict(metrics or {})
        self._told: dict[str, float] = {}
        self._epoch = epoch or None
        self._iteration = epoch or iteration
        self._step = -1
        self._is_over = False
        self._handle = submit(self._events.put)

    def next_report(self) -> TrialReport | None:
        """Waits for the next report; returns None once the run has ended."""
        while not self._is_over:
            try:
                event = self._events.get(timeout=0 if self._has_ended() else _LOOK_S)
            except queue.Empty:
                self._is_over = self._has_ended() and self._events.empty()
                continue
            match event["event"]:
                case "checkpoint":
                    self.checkpoint = event["checkpoint"]
                case "state":
                    self._is_over = RunState(event["state"]).is_terminal
                case "report" if self._is_news(event):
                    # Beside epochs, other values come with the next one.
                    is_aside = event["epoch"] is None and self._epoch is not None
                    self._take(event)
                    if not is_aside:
                        return self._report()
        return None

    def end(self) -> TrialReport | None:
        """Waits until nothing of the run is left; returns what was not reported yet, or None.

        Raises:
          RaydistError: The run failed or was stopped.
        """
        result = self._handle.result()
        self.checkpoint = result.checkpoint or self.checkpoint
        self._metrics |= result.metrics
        if self._iteration and _same(self._metrics, self._told):
            return None
        self._step = max(self._step, result.steps)
        self._iteration = max(self._iteration, 1)
        return self._report()

    def stop(self) -> None:
        """Stops the run, and waits until nothing of it is left. Idempotent."""
        with contextlib.suppress(RaydistError, TimeoutError):
            self._handle.stop()
            self._handle.result(timeout=_STOP_TIMEOUT_S)

    def _has_ended(self) -> bool:
        try:
            self._handle.result(timeout=0)
        except TimeoutError:
            return False
        except RaydistError:  # raised again by `end`
            return True
        return True

    def _is_news(self, event: Event) -> bool:
        """Whether a report is not of an epoch that was trained again after a failure."""
        if event["epoch"] is not None:
            return self._epoch is None or int(event["epoch"]) > self._epoch
        return int(event["step"]) >= self._step

    def _take(self, event: Event) -> None:
        epoch = event["epoch"]
        self._metrics |= event["metrics"]
        self._step = max(self._step, event["step"])
        if epoch is not None:
            # From the first one on; what was reported before it has counted by itself.
            self._epoch = self._iteration = epoch
        elif self._epoch is None:
            self._iteration += 1

    def _report(self) -> TrialReport:
        self._told = dict(self._metrics)
        return TrialReport(
            iteration=self._iteration,
            step=self._step,
            epoch=self._epoch,
            metrics=self._told,
            checkpoint=self.checkpoint,
        )


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether both have the same values, NaN included."""
    return one.keys() == other.keys() and all(
        value == other[name] or (math.isnan(value) and math.isnan(other[name])) for name, value in one.items()
    )
