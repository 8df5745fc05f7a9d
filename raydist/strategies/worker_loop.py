"""ctx.train_steps under ParameterServer: closures of `steps_per_call` steps on whichever worker is free."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.strategies import tensorflow_internals, worker_data
from raydist.strategies.closure_sizes import ClosureSizes
from raydist.strategies.closures import PackedSteps, StepScheduler

if TYPE_CHECKING:
    from raydist.strategies.context import TaskContext

REPORT_INTERVAL_S = 0.5


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
    own = worker_data.read(
        data, context.strategy, context.coordinator, num_workers=context.num_workers, skip=skip
    )
    scalars = _Scalars(context.strategy, step_fn)
    scalars.probe(own.iterators)
    steps = PackedSteps(context.strategy, scalars.add, iterators=own.iterators, zeros=scalars.zeros)
    sizes = ClosureSizes(num_workers=context.num_workers, total=num_steps, fixed=steps_per_call)
    scheduler = StepScheduler(context.coordinator, steps, sizes, num_workers=context.num_workers)
    last_step = done + num_steps
    metrics: Mapping[str, float] = {}
    reported_at_s = time.monotonic()

    def on_done(count: int, state: Sequence[np.ndarray]) -> None:
        nonlocal done, metrics, reported_at_s
        done += count
        metrics = {name: float(value) / count for name, value in zip(scalars.names, state[0], strict=True)}
        context.step = done
        context.progress.completed(done, local_metrics=metrics)
        if time.monotonic() - reported_at_s >= REPORT_INTERVAL_S or done == last_step:
            reported_at_s = time.monotonic()
            context.report_global(metrics, step=done)

    save = context.orders.save
    while done < last_step:
        left = min(last_step - done, context.steps_to_checkpoint(done))
        scheduler.run(left, on_done, should_pause=save.is_set)
        context.progress.repeated(context.steps_repeated + scheduler.num_repeated)
        if save.is_set() or context.steps_to_checkpoint(done - 1) == 1:
            save.clear()
            context.save_registered()
    context.steps_repeated += scheduler.num_repeated
    context.save_registered()
    return metrics


class _Scalars:
    """The scalars that a step function returns, summed over the steps of a closure.

    Attributes:
      names: Their names, sorted; known once a step is traced.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step_fn: Callable[[Any], Mapping[str, Any]]) -> None:
        self._strategy = strategy
        # Users write `if tensor:` in their own step.
        self._step_fn = tf.__internal__.autograph.tf_convert(
            step_fn, tf.__internal__.autograph.control_status_ctx()
        )
        self.names: list[str] = []

    def probe(self, iterators: Any) -> None:
        """Traces one step for its names, and for the variables that an optimizer makes in it."""
        function = tf.function(lambda iterator: self._run(next(iterator)), autograph=False)
        with tensorflow_internals.traced_for_workers(self._strategy):
            function.get_concrete_function(tensorflow_internals.spec_of(iterators))

    def zeros(self) -> tuple[tf.Tensor, ...]:
        return (tf.zeros([len(self.names)]),)

    def add(self, element: Any, state: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Runs one step on `element`; returns the sums with its scalars, averaged over replicas, added."""
        return (state[0] + self._run(element),)

    def _run(self, element: Any) -> tf.Tensor:
        per_replica = self._strategy.experimental_local_results(
            self._strategy.run(self._replica_step, args=(element,))
        )
        return tf.add_n(list(per_replica)) / len(per_replica)

    def _replica_step(self, batch: Any) -> tf.Tensor:
        scalars = self._step_fn(batch)
        if not isinstance(scalars, Mapping) or not scalars:
            raise UnsupportedError(
                f"step_fn returned {type(scalars).__name__}; return a dict of scalars, "
                "such as {'loss': loss}"
            )
        self.names = sorted(scalars)
        return tf.stack([tf.cast(tf.reduce_mean(scalars[name]), tf.float32) for name in self.names])
