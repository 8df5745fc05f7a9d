"""ctx.train_steps: a loop of the user's steps, several in each `tf.function`.

keras_fit.py calls `begin`, which finds where the loop continues, and then `run_steps`, which returns the
scalars of the last call. parameter_server/chief.py shares `begin` and `Loop`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.outcome.status import Scope
from raydist.training.checkpointing.schedule import KeepSchedule
from raydist.training.checks import layer_notes, loop_rules
from raydist.training.checks.loop_rules import LoopRule, scalars_of
from raydist.training.cluster import collectives, kept_totals
from raydist.training.input import recipes, train_data
from raydist.training.replicas import batch_slices, compilation, step_logs
from raydist.training.reporting.logs import REPORT_INTERVAL_S
from raydist.training.stepping import step_timing
from raydist.training.stepping.step_timing import PaceReport
from raydist.training.trainers.base import LoopRequest, TaskRun
from raydist.training.user_code import side_effects


class Loop:
    """A loop that is under way: counts its steps, reports its scalars, and saves what is registered.

    Attributes:
      skip: Steps of it, and so of its data, that were done before this process took it up.
      done: Steps that the run has behind it now. `before`: before the last call.
      last_step: Those that it has at the loop's end.
    """

    def __init__(self, run: TaskRun, *, index: int, first_step: int, done: int, last_step: int) -> None:
        """Takes where the loop is; `index` is how many came before it."""
        self._run = run
        # What a checkpoint inside of the loop says of it.
        self._saved = {"loop": index, "loop_first_step": first_step}
        self._reported_at_s = time.monotonic()
        self.skip = done - first_step
        self.done = self.before = done
        self.last_step = last_step
        self.metrics: Mapping[str, float] = {}

    @property
    def left(self) -> int:
        return self.last_step - self.done

    @property
    def most_steps(self) -> int:
        """The steps that may run until a checkpoint is due."""
        return min(self.left, self._run.steps_to_checkpoint(self.done))

    @property
    def wants_save(self) -> bool:
        return bool(self._run.registered) and self._run.wants_save(self.done)

    def completed(self, count: int, metrics: Mapping[str, float]) -> bool:
        """Takes the means of the scalars over `count` more steps; returns whether it has reported them.

        That is at most twice a second, and at the loop's end.
        """
        self.before, self.done, self.metrics = self.done, self.done + count, metrics
        self._run.reporter.advance(self.done, values=metrics)
        self._run.checkpoints.check()
        is_due = time.monotonic() - self._reported_at_s >= REPORT_INTERVAL_S or not self.left
        if is_due:
            self._reported_at_s = time.monotonic()
            self._run.reporter.report(metrics, step=self.done)
        return is_due

    def save(self, *, is_wanted: bool = True) -> bool:
        """Saves if that is wanted or due; returns whether it was."""
        run = self._run
        is_due = is_wanted or run.schedule.is_due(step_before=self.before, step=self.done)
        if is_due and run.registered and run.checkpoints.last_saved_step != self.done:
            run.save(run.registered, step=self.done, **self._saved)
        return is_due

    def keep(self) -> None:
        """Keeps in memory what `save` stores."""
        self._run.keep(self._run.registered, step=self.done, **self._saved)

    def end(self) -> None:
        self.save()
        self._run.checkpoints.finish()


class _Votes(NamedTuple):
    """What this worker says besides its scalars in a call, and what all of them say together.

    Attributes:
      wants_save: Whether it wants a checkpoint; of all, how many do.
      keep_cost_s: What it costs to keep the state in memory. `call_s`: how long the last call took.
    """

    wants_save: float
    keep_cost_s: float = 0.0
    call_s: float = 0.0


class _Keeping:
    """Keeps in memory what the loop has registered, between its checkpoints."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._schedule = KeepSchedule()
        self._is_on = run.checkpoints.keeps and bool(run.registered)
        self._called_at_s: float | None = None

    def votes(self, *, wants_save: bool) -> _Votes:
        now_s, before_s = time.perf_counter(), self._called_at_s
        self._called_at_s = now_s
        call_s = 0.0 if before_s is None else now_s - before_s
        return _Votes(float(wants_save), self._schedule.cost_s, call_s)

    def called(self, agreed: _Votes) -> None:
        """Takes the sums over all workers, of which the chief alone has costs."""
        self._schedule.called()
        if self._is_on:
            call_s = agreed.call_s / self._run.assignment.num_workers
            self._schedule.agreed(agreed.keep_cost_s, call_s=call_s)

    def keep(self, loop: Loop) -> None:
        if self._is_on:
            self._run.keep_by(self._schedule, loop.keep)


def begin(run: TaskRun, request: LoopRequest) -> Loop | None:
    """Returns what is left of a loop that begins where the training before it ended; None for nothing.

    Raises:
      UnsupportedError: The request is none that can be trained.
    """
    num_steps = request.num_steps
    if num_steps < 1 or request.steps_per_call < 1:
        raise UnsupportedError(
            f"train_steps got num_steps={num_steps} and steps_per_call={request.steps_per_call}; "
            "both have to be at least 1"
        )
    reporter, restored = run.reporter, run.restored
    index, run.num_loops = run.num_loops, run.num_loops + 1
    # Steps that were counted before do not shorten this loop.
    first_step = done = max(reporter.first_step, reporter.step)
    if restored is not None and restored.loop is None:  # of a raydist that knew no numbers of loops
        first_step, done = reporter.first_step, max(restored.step, reporter.first_step)
    elif restored is not None and index < (restored.loop or 0):  # it had ended
        return None
    elif restored is not None and index == restored.loop and restored.loop_first_step is not None:
        first_step, done = restored.loop_first_step, restored.step
    last_step = reporter.first_step = first_step + num_steps
    reporter.progress.expect(num_steps=last_step)
    if done >= last_step:
        return None
    run.trains_on(request.train_data, resumed=restored if done > first_step else None)
    recipes.check_length(request.train_data, num_steps)
    if done == first_step:
        reporter.progress.training_begins("train_steps", number=index + 1, step=done)
    return Loop(run, index=index, first_step=first_step, done=done, last_step=last_step)


def run_steps(run: TaskRun, request: LoopRequest, loop: Loop) -> Mapping[str, float]:
    """Runs the steps on all replicas together; returns the scalars of the last call."""
    dataset = train_data.read_batches(
        request.train_data, run.strategy, auto_shard=run.auto_shard, skip=loop.skip, count=loop.left
    )
    compilation.note_clustering(run.strategy)
    _check_alike(run.strategy, request)
    call = _make_call(
        run.strategy,
        request.step_fn,
        num_workers=run.assignment.num_workers,
        before_first=functools.partial(_look_at, run),
    )
    iterator = iter(dataset)
    pace = PaceReport()
    keeping = _Keeping(run)
    while loop.left:
        count = min(request.steps_per_call, loop.most_steps)
        scalars, agreed = call(iterator, count, keeping.votes(wants_save=loop.wants_save))
        keeping.called(agreed)
        if loop.completed(count, scalars):
            run.reporter.report(pace.update(run.reporter, step=loop.done), step=loop.done, scope=Scope.LOCAL)
        if not loop.save(is_wanted=agreed.wants_save > 0) and loop.left:
            keeping.keep(loop)
    pace.finish(run.reporter)
    loop.end()
    return loop.metrics


def _make_call(
    strategy: tf.distribute.Strategy,
    step_fn: Callable[[Any], Mapping[str, Any]],
    *,
    num_workers: int,
    before_first: Callable[[tf.Graph], None],
) -> Callable[[Any, int, _Votes], tuple[Mapping[str, float], _Votes]]:
    """Returns a function of iterator, number of steps, and this worker's votes.

    It returns the scalars' means, and the sums of all workers' votes.

    Args:
      before_first: Called with the graph of a step before it is run.
    """
    names: list[str] = []
    converted = tf_private.converted(step_fn)
    # What the steps change and each replica has values of its own of, such as Keras's metrics.
    metric_variables: list[Any] = []
    rule: LoopRule | None = None
    num_local = len(strategy.extended.worker_devices)

    def replica_step(element: Any) -> tf.Tensor:
        assert rule is not None
        returned = batch_slices.run_slice(converted, element, kept=metric_variables, rule=rule.rule)
        scalars = scalars_of(returned, step_fn=step_fn)
        names[:] = scalars
        values = tf.stack([tf.cast(one, tf.float64) for one in scalars.values()])
        share = (
            element.share if isinstance(element, batch_slices.Slice) else 1.0 / strategy.num_replicas_in_sync
        )
        is_sum = tf.constant([name in rule.sums for name in names])
        # The share of a padding example is 0, but its loss may be anything: 0 * inf would be NaN.
        return tf.where(share > 0, tf.where(is_sum, values, values * share), tf.zeros_like(values))

    @tf.autograph.experimental.do_not_convert
    def one_step(element: Any) -> tf.Tensor:
        outputs = strategy.run(replica_step, args=(element,))
        return tf.stack(strategy.experimental_local_results(outputs))

    @tf.autograph.experimental.do_not_convert
    def over_replicas(totals: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
        """Returns the sums of the replicas' scalars, `[num_local, names]`, and of the workers' votes."""

        def reduce() -> tf.Tensor:
            index = collectives.local_index(strategy)
            own_votes = tf.where(tf.equal(index, 0), votes, tf.zeros_like(votes))
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.concat([totals[index], own_votes], axis=0)
            )

        return strategy.experimental_local_results(strategy.run(reduce))[0]

    def first_step(element: Any) -> tf.Tensor:
        function = traced_step()
        graph = function.get_concrete_function(element).graph
        step_logs.check_names(strategy, names, step="step_fn")
        before_first(graph)
        if isinstance(strategy.experimental_local_results(element)[0], batch_slices.Slice):
            changed = tf_private.changed_variables(graph)
            metric_variables[:] = [one for one in changed if tf_private.is_synchronized_on_read(one)]
        if metric_variables:  # which only the trace has shown
            function = traced_step()
        return function(element)

    def traced_step() -> Any:
        return tf_private.without_retracing_warnings(
            tf.function(one_step, reduce_retracing=True, autograph=False)
        )

    @tf_private.without_retracing_warnings
    @tf.function(reduce_retracing=True, autograph=False)
    def steps(iterator: Any, count: tf.Tensor, before: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
        _, total = tf.while_loop(
            lambda index, total: index < count,
            lambda index, total: (index + 1, total + one_step(step_timing.next_element(iterator))),
            [tf.constant(0), before],
            parallel_iterations=1,
        )
        # One all-reduce a call, of all scalars at once.
        return over_replicas(total, votes)

    @kept_totals.changing()
    def call(iterator: Any, count: int, votes: _Votes) -> tuple[Mapping[str, float], _Votes]:
        nonlocal rule
        left, before = count, None
        if rule is None:
            element = step_timing.next_element(iterator)
            with side_effects.undone(step_fn):
                rule = loop_rules.rule_of_loop(step_fn, element, strategy=strategy, num_workers=num_workers)
            left, before = count - 1, first_step(element)
        if before is None:
            before = tf.zeros([num_local, len(names)], tf.float64)
        reduced = steps(iterator, tf.constant(left), before, tf.constant(votes, tf.float64)).numpy().tolist()
        totals, agreed = reduced[: len(names)], _Votes(*reduced[len(names) :])
        return dict(zip(names, (total / count for total in totals), strict=True)), agreed

    return call


def _check_alike(strategy: tf.distribute.Strategy, request: LoopRequest) -> None:
    """Raises UnsupportedError if workers were asked for loops of other lengths. A collective."""
    if collectives.is_alone(strategy):
        return
    asked = {"num_steps": request.num_steps, "steps_per_call": request.steps_per_call}
    rows = collectives.gather_over_workers(strategy, list(asked.values()))
    for name, values in zip(asked, zip(*rows, strict=True), strict=True):
        if len(set(values)) > 1:
            raise UnsupportedError(
                f"{name} of train_steps differs between the workers: {collectives.by_worker(values)}; each "
                "step needs all of them, so give all the same"
            )


def _look_at(run: TaskRun, graph: tf.Graph) -> None:
    """Notes what the steps change and checkpoints lack; checks that all workers begin with the same weights.

    Not with their other state: BatchNormalization of Keras 3 leaves its statistics to each replica.
    """
    run.note_unsaved(tf_private.changed_variables(graph))
    for sentence in layer_notes.notes_on_workers(run.strategy, graph):
        run.reporter.note(sentence)
    weights = [one for one in tf_private.captured_variables(graph) if one.trainable]
    run.checkpoints.check_equal({"weights": weights}, when="before the first step of this train_steps")
