"""ctx.train_steps: a custom loop with several steps in each `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.spec.tasks import TaskType
from raydist.training.input import input_clock, recipes, train_data
from raydist.training.replicas import slices
from raydist.training.reporting.loop_reports import LoopReports, checked_scalars

if TYPE_CHECKING:
    from raydist.training.context import TaskContext


def train_steps(
    context: TaskContext,
    step_fn: Callable[[Any], Mapping[str, Any]],
    data: Any,
    *,
    num_steps: int,
    steps_per_call: int,
) -> Mapping[str, float]:
    """Runs `num_steps` steps, less those that a restored run has behind it; see TrainContext.train_steps."""
    if num_steps < 1 or steps_per_call < 1:
        raise UnsupportedError(
            f"train_steps got num_steps={num_steps} and steps_per_call={steps_per_call}; "
            "both have to be at least 1"
        )
    if context.task.task_type is TaskType.EVALUATOR:
        raise UnsupportedError("the evaluator evaluates what ctx.fit trains; use --no-evaluator")
    first_step = context.loop_step
    last_step = first_step + num_steps
    context.loop_step = last_step
    done = max(context.step, first_step)
    context.progress.expect(num_steps=last_step)
    if done >= last_step:
        return {}
    context.trains_on(data, resumed=context.restored if done > first_step else None)
    recipes.check_length(data, num_steps)
    if context.coordinator is not None:
        from raydist.training.parameter_server import custom_loop

        return custom_loop.run(
            context,
            step_fn,
            data,
            done=done,
            skip=done - first_step,
            num_steps=last_step - done,
            steps_per_call=steps_per_call,
        )
    dataset = train_data.read_endless(
        data, context.strategy, auto_shard=context.auto_shard, skip=done - first_step
    )
    call = _make_call(context.strategy, step_fn)
    iterator = iter(dataset)
    reports = LoopReports(context, done=done, last_step=last_step)
    report = input_clock.InputReport()
    while (done := reports.done) < last_step:
        count = min(steps_per_call, last_step - done, context.steps_to_checkpoint(done))
        scalars, is_save_wanted = call(iterator, count, context.wants_registered_save(done))
        if reports.completed(count, scalars):
            context.record_local(report.update(), step=reports.done, epoch=None)
        if is_save_wanted or context.cadence.is_due(step_before=done, step=done + count):
            context.save_registered()
    report.finish(context)
    context.save_registered()
    context.checkpoints.finish()
    return reports.metrics


def _make_call(
    strategy: tf.distribute.Strategy, step_fn: Callable[[Any], Mapping[str, Any]]
) -> Callable[[Any, int, bool], tuple[Mapping[str, float], bool]]:
    """Returns a function of iterator, number of steps, and whether this worker wants a checkpoint.

    It returns the scalars' means, and whether any worker wants one.
    """
    names: list[str] = []
    num_local = len(strategy.extended.worker_devices)

    def replica_step(element: Any) -> tf.Tensor:
        scalars = checked_scalars(slices.run_slice(step_fn, element))
        names[:] = sorted(scalars)
        values = tf.stack([tf.cast(tf.reduce_mean(scalars[name]), tf.float32) for name in names])
        share = element.share if isinstance(element, slices.Slice) else 1.0 / strategy.num_replicas_in_sync
        # The share of a stand-in is 0, but its loss may be anything: 0 * inf would be NaN.
        return tf.where(share > 0, values * share, tf.zeros_like(values))

    @tf.autograph.experimental.do_not_convert
    def one_step(iterator: Any) -> tf.Tensor:
        outputs = strategy.run(replica_step, args=(input_clock.next_element(iterator),))
        return tf.add_n(list(strategy.experimental_local_results(outputs)))

    @tf.autograph.experimental.do_not_convert
    def over_workers(total: tf.Tensor) -> tf.Tensor:
        def reduce(value: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, value / num_local
            )

        return strategy.experimental_local_results(strategy.run(reduce, args=(total,)))[0]

    @tf.function(reduce_retracing=True)
    def steps(iterator: Any, count: tf.Tensor, wants_save: tf.Tensor) -> tf.Tensor:
        total = one_step(iterator)
        for _ in tf.range(count - 1):
            total += one_step(iterator)
        # One all-reduce a call, of all scalars at once.
        return over_workers(tf.concat([total / tf.cast(count, tf.float32), [wants_save]], axis=0))

    def call(iterator: Any, count: int, wants_save: bool) -> tuple[Mapping[str, float], bool]:
        reduced = steps(iterator, tf.constant(count), tf.constant(float(wants_save)))
        *values, num_wanting = reduced.numpy().tolist()
        return dict(zip(names, values, strict=True)), num_wanting > 0

    return call
