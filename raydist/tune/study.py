"""Study: the trials of a search, which is best, and how far equal trials with other seeds are apart."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.outcome.result import RunError
from raydist.outcome.status import RunState
from raydist.spec.best import Direction
from raydist.spec.text import suggest


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial.

    Attributes:
      run: The run's name.
      state: The run's state; None for a trial that has not begun.
      stopped_early: Whether the search ended it, by its scheduler; its state is CANCELLED then.
      params: Those that differ from trial to trial.
      seed: The run's seed, where several are tried; else None.
      epochs: Epochs completed, for a job without epochs its reports.
      value: The best value of the study's metric; None where it was not reported, or there is none.
      metrics: The newest value of each metric.
    """

    run: str
    state: str | None = None
    stopped_early: bool = False
    params: Mapping[str, Any]
    seed: int | None = None
    epochs: int = 0
    steps: int = 0
    value: float | None = None
    metrics: Mapping[str, float]
    error: RunError | None = None

    @property
    def has_ended(self) -> bool:
        return self.state is not None and RunState(self.state).is_terminal

    @property
    def is_complete(self) -> bool:
        """Whether it succeeded, or was stopped early."""
        return self.has_ended and self.state != RunState.FAILED.value and self.error is None

    def as_dict(self) -> dict[str, Any]:
        error = None if self.error is None else self.error.as_dict()
        return {**vars(self), "params": dict(self.params), "metrics": dict(self.metrics), "error": error}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The values of one metric in trials that differ by their seed alone.

    Attributes:
      deviation: Standard deviation of a sample; None of a single value.
    """

    params: Mapping[str, Any]
    metric: str
    num_trials: int
    mean: float
    deviation: float | None
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """The trials of a search.

    Attributes:
      metric: None where all trials have the same params.
      trials: In the order in which they were made.
      num_trials: How many were asked for.
      is_interrupted: Whether some were left for --resume.
    """

    name: str
    storage: str
    metric: str | None
    direction: Direction
    trials: tuple[TrialRow, ...]
    num_trials: int
    is_interrupted: bool = False

    @property
    def ranked(self) -> tuple[TrialRow, ...]:
        """The trials, the best first, and those without a value last."""
        sign = -1.0 if self.direction is Direction.HIGHEST else 1.0

        def rank(trial: TrialRow) -> float:
            value = trial.value
            return math.inf if value is None or not math.isfinite(value) else sign * value

        return tuple(sorted(self.trials, key=rank))

    @property
    def best(self) -> TrialRow | None:
        """The trial with the best value; None where none has one."""
        first = self.ranked[:1]
        return first[0] if first and first[0].value is not None and math.isfinite(first[0].value) else None

    @property
    def failed(self) -> tuple[TrialRow, ...]:
        """The trials that failed, in the order in which they were made."""
        return tuple(trial for trial in self.trials if trial.error is not None)

    def spreads(self) -> list[Spread]:
        """Returns mean and spread of each metric over the seeds, the params in the order of the trials.

        Trials that were stopped early have fewer epochs, and are left out.
        """
        groups: dict[str, list[TrialRow]] = {}
        for trial in self.trials:
            if trial.state == RunState.SUCCEEDED.value and trial.metrics:
                groups.setdefault(json.dumps(dict(trial.params), sort_keys=True), []).append(trial)
        return [
            _spread(trials[0].params, name, [one.metrics[name] for one in trials if name in one.metrics])
            for trials in groups.values()
            for name in dict.fromkeys(name for one in trials for name in one.metrics)
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "study": self.name,
            "storage": self.storage,
            "metric": self.metric,
            "mode": self.direction.value,
            "best": None if self.best is None else self.best.run,
            "num_trials": self.num_trials,
            "interrupted": self.is_interrupted,
            "trials": [trial.as_dict() for trial in self.ranked],
            "spreads": [vars(one) for one in self.spreads()] if self._has_seeds else [],
        }

    @property
    def _has_seeds(self) -> bool:
        return any(trial.seed is not None for trial in self.trials)

    def columns(self) -> list[str]:
        """Returns the names of the columns of `cells`."""
        params = list(dict.fromkeys(name for trial in self.trials for name in trial.params))
        seed = ["seed"] if self._has_seeds else []
        metric = [] if self.metric is None else [self.metric]
        return ["run", "state", *params, *seed, "epochs", *metric]

    def cells(self, trial: TrialRow) -> list[Any]:
        """Returns a trial as a row of a table, with the columns of `columns`."""
        state = "stopped early" if trial.stopped_early else trial.state
        own = {"run": trial.run, "state": state, "seed": trial.seed, "epochs": trial.epochs}
        known = {**trial.metrics, **trial.params, **own}
        if self.metric is not None:
            known[self.metric] = trial.value
        return [known.get(name) for name in self.columns()]


def _spread(params: Mapping[str, Any], name: str, values: Sequence[float]) -> Spread:
    """Returns the spread; NaN where one of the values is not finite, as a seed that diverged counts."""
    is_finite = all(map(math.isfinite, values))
    return Spread(
        params=params,
        metric=name,
        num_trials=len(values),
        mean=statistics.fmean(values) if is_finite else math.nan,
        deviation=None if len(values) < 2 else statistics.stdev(values) if is_finite else math.nan,
        lowest=min(values) if is_finite else math.nan,
        highest=max(values) if is_finite else math.nan,
    )


def missing_metric(metric: str, reported: Iterable[str]) -> str:
    """Returns the sentence about a metric that a run which has ended did not report."""
    return f"metric is {metric!r}, which the job does not report; {suggest(metric, sorted(reported))}"
