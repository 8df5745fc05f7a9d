"""ParameterServerTrainer: the chief of ParameterServerStrategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.training.parameter_server import custom_loop as worker_steps, evaluation, fit
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.trainers import custom_loop
from raydist.training.trainers.task_run import TaskRun
from raydist.training.trainers.trainer import EvaluateRequest, FitRequest, LoopRequest, PredictRequest


class ParameterServerTrainer:
    """Trains by closures that the coordinator schedules on the workers.

    Args:
      sources: Where the workers learn what batches of raydist.data to read.
    """

    def __init__(self, run: TaskRun, *, sources: SharedSources) -> None:
        self._run = run
        self._sources = sources

    def fit(self, request: FitRequest) -> Any:
        return fit.fit(self._run, request, sources=self._sources)

    def evaluate(self, request: EvaluateRequest) -> dict[str, Any]:
        return evaluation.evaluate(self._run, request, sources=self._sources)

    def predict(self, request: PredictRequest) -> Any:
        return evaluation.predict(request)

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        span = custom_loop.begin(self._run, request)
        if span is None:
            return {}
        return worker_steps.run_steps(self._run, request, span, sources=self._sources)
