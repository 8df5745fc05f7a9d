"""ctx.train_steps under ParameterServer: closures of `steps_per_call` steps on whichever worker is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from raydist.training.parameter_server import train_input
from raydist.training.parameter_server.closure_sizes import ClosureSizes
from raydist.training.parameter_server.closures import PackedSteps, StepScheduler
from raydist.training.parameter_server.returned_scalars import ReturnedScalars
from raydist.training.reporting.loop_reports import LoopReports, checked_scalars

if TYPE_CHECKING:
    from raydist.training.context import TaskContext


def run(
    context: TaskContext,
    step_fn: Callable[[Any], Mapping[str, Any]],
    data: Any,
    *,
    done: int,
    skip: int,
    num_steps: int,
    steps_per_call: int,
) -> Mapping[str, float]:
    """Runs `num_steps` steps; see TrainContext.train_steps.

    Args:
      done: Steps that the run has behind it; `skip` of them read these data.
    """
    feed = train_input.read(context, data, skip=skip)
    # Users write `if tensor:` in their own step.
    converted = tf.__internal__.autograph.tf_convert(step_fn, tf.__internal__.autograph.control_status_ctx())
    scalars = ReturnedScalars(context.strategy, lambda batch: checked_scalars(converted(batch)))
    scalars.probe(feed)
    steps = PackedSteps(
        context.strategy,
        lambda element, state: (state[0] + scalars.run(element),),
        feed=feed,
        zeros=lambda: (tf.zeros([len(scalars.names)]),),
    )
    sizes = ClosureSizes(num_workers=context.num_workers, total=num_steps, fixed=steps_per_call)
    scheduler = StepScheduler(
        context.coordinator, steps, sizes, num_workers=context.num_workers, first_step=skip
    )
    reports = LoopReports(context, done=done, last_step=done + num_steps)

    def on_done(count: int, state: Sequence[np.ndarray]) -> None:
        means = state[0] / count
        reports.completed(count, dict(zip(scalars.names, map(float, means), strict=True)))

    def is_save_wanted() -> bool:
        return context.wants_registered_save(reports.done)

    while reports.done < done + num_steps:
        left = min(done + num_steps - reports.done, context.steps_to_checkpoint(reports.done))
        scheduler.run(left, on_done, should_pause=is_save_wanted)
        context.progress.repeated(context.steps_repeated + scheduler.num_repeated)
        if is_save_wanted() or context.steps_to_checkpoint(reports.done - 1) == 1:
            context.save_registered()
    context.steps_repeated += scheduler.num_repeated
    context.save_registered()
    context.checkpoints.finish()
    return reports.metrics
