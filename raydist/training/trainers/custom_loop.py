"""ctx.train_steps: a loop of the user's steps, several in each `tf.function`.

keras_fit.py calls `begin`, which finds where the loop continues, and then `run_steps`, which returns the
scalars of the last call. parameter_server/chief.py shares `begin` and `Loop`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.outcome.status import Scope
from raydist.training.checkpointing.schedule import KeepSchedule
from raydist.training.checks import layer_notes, loop_rules
from raydist.training.checks.known_steps import Known
from raydist.training.checks.loop_rules import LoopRule, scalars_of
from raydist.training.cluster import collectives, kept_totals
from raydist.training.input import recipes, train_data
from raydist.training.replicas import batch_slices, compilation, step_logs
from raydist.training.reporting.logs import REPORT_INTERVAL_S
from raydist.training.reporting.reporter import noting_on_success
from raydist.training.stepping import step_timing
from raydist.training.stepping.step_timing import PaceReport
from raydist.training.trainers.base import LoopRequest, TaskRun
from raydist.training.user_code import side_effects


class Loop:
    """A loop that is under way: counts its steps, reports its scalars, and saves what is registered.

    Attributes:
      known: What is known of its step, by the process before this one or by this one.
      skip: Steps of it, and so of its data, that were done before this process took it up.
      done: Steps that the run has behind it now. `before`: before the last call.
      last_step: Those that it has at the loop's end.
    """

    def __init__(
        self,
        run: TaskRun,
        *,
        index: int,
        first_step: int,
        done: int,
        last_step: int,
        known: Known,
    ) -> None:
        """Takes where the loop is; `index` is how many came before it."""
        self._run = run
        self.known = known
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
        """Keeps in memory what `save` stores, and what is known of the step."""
        known = self.known.packed()
        self._run.keep(self._run.registered, step=self.done, known_step=known, **self._saved)

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
        self.is_on = run.checkpoints.keeps and bool(run.registered)
        self._called_at_s: float | None = None

    def votes(self, *, wants_save: bool) -> _Votes:
        now_s, before_s = time.perf_counter(), self._called_at_s
        self._called_at_s = now_s
        call_s = 0.0 if before_s is None else now_s - before_s
        return _Votes(float(wants_save), self._schedule.cost_s, call_s)

    def called(self, agreed: _Votes) -> None:
        """Takes the sums over all workers, of which the chief alone has costs."""
        self._schedule.called()
        if self.is_on:
            call_s = agreed.call_s / self._run.assignment.num_workers
            self._schedule.agreed(agreed.keep_cost_s, call_s=call_s)

    def keep(self, loop: Loop) -> None:
        if self.is_on:
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
    known = None
    if restored is not None and restored.loop is None:  # of a raydist that knew no numbers of loops
        first_step, done = reporter.first_step, max(restored.step, reporter.first_step)
    elif restored is not None and index < (restored.loop or 0):  # it had ended
        return None
    elif restored is not None and index == restored.loop and restored.loop_first_step is not None:
        first_step, done, known = restored.loop_first_step, restored.step, restored.known_step
    last_step = reporter.first_step = first_step + num_steps
    reporter.progress.expect(num_steps=last_step)
    if done >= last_step:
        return None
    run.trains_on(request.train_data, resumed=restored if done > first_step else None)
    recipes.check_length(request.train_data, num_steps)
    if done == first_step:
        reporter.progress.training_begins("train_steps", number=index + 1, step=done)
    return Loop(run, index=index, first_step=first_step, done=done, last_step=last_step, known=Known(known))


def run_steps(run: TaskRun, request: LoopRequest, loop: Loop) -> Mapping[str, float]:
    """Runs the steps on all replicas together; returns the scalars of the last call."""
    dataset = train_data.read_batches(
        request.train_data, run.strategy, auto_shard=run.auto_shard, skip=loop.skip, count=loop.left
    )
    compilation.note_clustering(run.strategy)
    _check_alike(run.strategy, request)
    keeping = _Keeping(run)
    steps = _Steps(run, request, loop, is_handed_on=keeping.is_on)
    iterator = iter(dataset)
    pace = PaceReport()
    while loop.left:
        count = min(request.steps_per_call, loop.most_steps)
        with kept_totals.changing():
            scalars, agreed = steps.run(iterator, count, keeping.votes(wants_save=loop.wants_save))
        keeping.called(agreed)
        if loop.completed(count, scalars):
            run.reporter.report(pace.update(run.reporter, step=loop.done), step=loop.done, scope=Scope.LOCAL)
        if not loop.save(is_wanted=agreed.wants_save > 0) and loop.left:
            keeping.keep(loop)
    pace.finish(run.reporter)
    loop.end()
    return loop.metrics


class _Steps:
    """Runs the steps of a loop, several in a call, on all replicas."""

    def __init__(self, run: TaskRun, request: LoopRequest, loop: Loop, *, is_handed_on: bool) -> None:
        """Takes a loop; `is_handed_on` is whether another process may take it up from what is kept."""
        self._run, self._loop, self._is_handed_on = run, loop, is_handed_on
        self._strategy, self._step_fn = run.strategy, request.step_fn
        self._converted = tf_private.converted(request.step_fn)
        self._rule: LoopRule | None = None
        self._names: list[str] = []
        # What the steps change and each replica has values of its own of, such as Keras's metrics.
        self._metric_variables: list[Any] = []
        self._num_local = len(self._strategy.extended.worker_devices)
        self._steps = _traced(self._run_steps)

    def run(self, iterator: Any, count: int, votes: _Votes) -> tuple[Mapping[str, float], _Votes]:
        """Returns the means of the scalars over `count` steps, and the sums of all workers' votes."""
        left, before, is_new = count, None, self._rule is None
        if is_new and not self._take_over(iterator, votes):
            element = step_timing.next_element(iterator)
            with noting_on_success():
                with side_effects.undone(self._step_fn):
                    self._rule = loop_rules.rule_of_loop(
                        self._step_fn,
                        element,
                        strategy=self._strategy,
                        num_workers=self._run.assignment.num_workers,
                        knows_rows=batch_slices.has_known_rows(iterator),
                    )
                left, before = count - 1, self._first_step(element, iterator.element_spec)
        arguments = self._arguments(iterator, left, before, votes)
        reduced = self._steps(*arguments).numpy().tolist()
        if is_new:
            self._hand_on(arguments)
        totals, agreed = reduced[: len(self._names)], _Votes(*reduced[len(self._names) :])
        means = (total / count for total in totals)
        return dict(zip(self._names, means, strict=True)), agreed

    def _arguments(
        self, iterator: Any, count: int, before: tf.Tensor | None, votes: _Votes
    ) -> tuple[Any, tf.Tensor, tf.Tensor, tf.Tensor]:
        if before is None:
            before = tf.zeros([self._num_local, len(self._names)], tf.float64)
        return iterator, tf.constant(count), before, tf.constant(votes, tf.float64)

    def _replica_step(self, element: Any) -> tf.Tensor:
        assert self._rule is not None
        returned = batch_slices.run_slice(
            self._converted, element, kept=self._metric_variables, rule=self._rule.rule
        )
        scalars = scalars_of(returned, step_fn=self._step_fn)
        self._names[:] = scalars
        values = tf.stack([tf.cast(one, tf.float64) for one in scalars.values()])
        num_replicas = self._strategy.num_replicas_in_sync
        share = element.share if isinstance(element, batch_slices.Slice) else 1.0 / num_replicas
        is_sum = tf.constant([name in self._rule.sums for name in scalars])
        # The share of a padding example is 0, but its loss may be anything: 0 * inf would be NaN.
        return tf.where(share > 0, tf.where(is_sum, values, values * share), tf.zeros_like(values))

    @tf.autograph.experimental.do_not_convert
    def _one_step(self, element: Any) -> tf.Tensor:
        outputs = self._strategy.run(self._replica_step, args=(element,))
        return tf.stack(self._strategy.experimental_local_results(outputs))

    @tf.autograph.experimental.do_not_convert
    def _over_replicas(self, totals: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
        """Returns the sums of the replicas' scalars, `[num_local, names]`, and of the workers' votes."""

        def reduce() -> tf.Tensor:
            index = collectives.local_index(self._strategy)
            own_votes = tf.where(tf.equal(index, 0), votes, tf.zeros_like(votes))
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.concat([totals[index], own_votes], axis=0)
            )

        return self._strategy.experimental_local_results(self._strategy.run(reduce))[0]

    def _run_steps(self, iterator: Any, count: tf.Tensor, before: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
        _, total = tf.while_loop(
            lambda index, total: index < count,
            lambda index, total: (index + 1, total + self._one_step(step_timing.next_element(iterator))),
            [tf.constant(0), before],
            parallel_iterations=1,
        )
        # One all-reduce a call, of all scalars at once.
        return self._over_replicas(total, votes)

    def _first_step(self, element: Any, spec: Any) -> tf.Tensor:
        function = _traced(self._one_step)
        graph = function.get_concrete_function(spec).graph
        step_logs.check_names(self._strategy, self._names, step="step_fn")
        _look_at(self._run, graph)
        if isinstance(self._strategy.experimental_local_results(element)[0], batch_slices.Slice):
            changed = tf_private.changed_variables(graph)
            self._metric_variables[:] = [one for one in changed if tf_private.is_synchronized_on_read(one)]
        if self._metric_variables:  # which only the trace has shown
            function = _traced(self._one_step)
            function.get_concrete_function(spec)  # the shape of this element says more
        return function(element)

    def _take_over(self, iterator: Any, votes: _Votes) -> bool:
        """Takes what another process has found out of the step: a collective.

        Returns:
          Whether the steps can be run. Otherwise everything is as it was.
        """
        known = self._loop.known.step(self._strategy)
        if known is None:
            return False
        self._rule = LoopRule(rule=known.loss_rule, sums=frozenset(known.sums))
        self._names[:] = known.names
        graph = self._loop.known.confirmed(
            self._strategy,
            lambda: self._steps.get_concrete_function(*self._arguments(iterator, 1, None, votes)).graph,
        )
        if graph is None:
            self._rule, self._steps = None, _traced(self._run_steps)
            return False
        _look_at(self._run, graph)
        return True

    def _hand_on(self, arguments: Sequence[Any]) -> None:
        """Has the next process know what was found, as far as the graph can show that it still holds."""
        rule, known = self._rule, self._loop.known
        assert rule is not None
        has_more = bool(self._metric_variables) or rule.has_sums_in_metrics
        if has_more or not self._is_handed_on or known.step(self._strategy) is not None:
            return
        graph = self._steps.get_concrete_function(*arguments).graph
        names, sums = list(self._names), sorted(rule.sums)
        known.set(self._strategy, graph, rule.rule, names=names, sums=sums)


def _traced(function: Any) -> Any:
    return tf_private.without_retracing_warnings(
        tf.function(function, reduce_retracing=True, autograph=False)
    )


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
