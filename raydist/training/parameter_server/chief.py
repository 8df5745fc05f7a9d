"""ParameterServerTrainer: the chief of ParameterServerStrategy, with its loop of the user's own steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.checks.loop_rules import scalars_of
from raydist.training.parameter_server import evaluation, fit, train_input
from raydist.training.parameter_server.closure_sizes import ClosureSizes
from raydist.training.parameter_server.closures import PackedSteps, StepScheduler
from raydist.training.parameter_server.returned_values import ReturnedScalars
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.trainers import custom_loop
from raydist.training.trainers.base import (
    EvaluateRequest,
    FitRequest,
    LoopRequest,
    PredictRequest,
    TaskRun,
)
from raydist.training.trainers.custom_loop import Loop


def run_steps(
    run: TaskRun, request: LoopRequest, loop: Loop, *, sources: SharedSources
) -> Mapping[str, float]:
    """Runs the steps; returns the scalars of the closure that was done last."""
    feed = train_input.read(run, request.train_data, sources=sources, skip=loop.skip)
    converted = tf_private.converted(request.step_fn)
    scalars = ReturnedScalars(
        run.strategy, lambda batch: scalars_of(converted(batch), step_fn=request.step_fn)
    )
    traced = scalars.probe(feed.element_spec)
    run.note_unsaved(tf_private.changed_variables(traced))
    steps = PackedSteps(
        run,
        lambda element, state: (state[0] + scalars.run(element),),
        feed=feed,
        zeros=lambda: (tf.zeros([len(scalars.names)]),),
        variables=tf_private.captured_variables(traced),
    )
    sizes = ClosureSizes(
        num_workers=run.assignment.num_workers, total=loop.left, fixed=request.steps_per_call
    )
    scheduler = StepScheduler(run, steps, sizes, first_step=loop.skip)

    def on_done(count: int, state: Sequence[np.ndarray]) -> None:
        means = state[0] / count
        loop.completed(count, dict(zip(scalars.names, map(float, means), strict=True)))

    while loop.left:
        scheduler.run(loop.most_steps, on_done, should_pause=lambda: loop.wants_save)
        run.reporter.progress.repeated(run.steps_repeated + scheduler.num_repeated)
        loop.save(is_wanted=loop.wants_save)
    run.steps_repeated += scheduler.num_repeated
    loop.end()
    return loop.metrics


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
        loop = custom_loop.begin(self._run, request)
        return {} if loop is None else run_steps(self._run, request, loop, sources=self._sources)
