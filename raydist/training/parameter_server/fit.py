"""ctx.fit under ParameterServerStrategy, for both Kerases: the chief schedules, the workers train.

Keras 3 has no `fit` for it (tensorflow-notes.md#keras-3-under-parameterserverstrategy), and
tf_keras's takes one closure per `steps_per_execution` and keeps metrics on the ps. Here closures hold
as many steps as fill half a second, and metrics travel with their results, so that each step of the
budget is counted once (closures.py, returned_values.py).
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.checkpointing import variables
from raydist.training.input import recipes, train_data
from raydist.training.keras_patches import adapters
from raydist.training.parameter_server import train_input
from raydist.training.parameter_server.closure_sizes import ClosureSizes
from raydist.training.parameter_server.closures import PackedSteps, StepScheduler, check_variables
from raydist.training.parameter_server.evaluation import WorkerEvaluation
from raydist.training.parameter_server.returned_values import LocalMetrics, ReturnedScalars, Tally
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.parameter_server.staleness import shared_updates
from raydist.training.parameter_server.train_input import Feed
from raydist.training.replicas import own_logs
from raydist.training.reporting.logs import floats
from raydist.training.stepping.callbacks import CallbackCalls
from raydist.training.trainers import fit_data
from raydist.training.trainers.base import FitRequest, TaskRun
from raydist.training.trainers.fit_position import FitPosition
from raydist.training.trainers.run_callbacks import run_callbacks


def fit(run: TaskRun, request: FitRequest, *, sources: SharedSources) -> Any:
    """Trains the model from where the newest checkpoint ended; returns its `History`."""
    request = fit_data.resolved(request, seed=run.data_seed)
    model, epochs, callbacks = request.model, request.epochs, tf.nest.flatten(list(request.callbacks))
    steps_per_epoch = _checked_steps(run, request)
    adapter = adapters.adapter_of(model)
    position = FitPosition.of_next_fit(run, initial_epoch=request.initial_epoch)
    skip = position.start.epoch * steps_per_epoch + position.start.step
    run.trains_on(request.train_data, resumed=position.here)
    data = fit_data.applied(request.train_data, request)
    recipes.check_length(data, (epochs - request.initial_epoch) * steps_per_epoch)
    feed = train_input.read(run, data, sources=sources, skip=skip)
    before, after = run_callbacks(
        position, adapter.library.callbacks.Callback, element_spec=feed.element_spec, users=callbacks
    )
    adapter.build(model, feed.element_spec)
    calls = CallbackCalls(
        model,
        [before, *callbacks, after],
        history=adapter.library.callbacks.History(),
        params={"epochs": epochs, "steps": steps_per_epoch, "verbose": 2},
    )
    calls.call("on_train_begin", {})  # restores
    check_variables(variables.variables_of("model", model))
    metrics = LocalMetrics(model)
    evaluation = None
    if request.validation_data is not None and not run.assignment.job.evaluator:
        evaluation = WorkerEvaluation(
            run,
            model,
            request.validation_data,
            metrics=metrics,
            sources=sources,
            num_steps=request.validation_steps,
        )
    first = position.first_epoch(epochs)
    num_steps = (epochs - first) * steps_per_epoch - position.step_in_epoch
    limits = {"steps_per_epoch": steps_per_epoch, "checkpoint_every": run.schedule.steps_left(0)}
    training = _Training(
        run,
        model,
        metrics=metrics,
        feed=feed,
        first_step=skip,
        position=position,
        calls=calls,
        save=after.save,
        num_steps=num_steps,
        staleness=shared_updates(run, "fit", limits=limits),
    )
    for epoch in range(first, epochs):
        logs = training.run_epoch(epoch, steps_per_epoch)
        if evaluation is not None and request.validates(epoch):
            calls.call("on_test_begin", {})
            values = evaluation.run()
            calls.call("on_test_end", values)
            logs.update({f"val_{name}": value for name, value in values.items()})
        calls.call("on_epoch_end", epoch, logs)
        if request.verbose != 0:
            print(f"Epoch {epoch + 1}/{epochs}: {_words(logs)}", flush=True)
        if model.stop_training:
            break
    if first < epochs:
        adapter.end_training(model)
    calls.call("on_train_end", position.history[-1] if position.history else {})
    run.steps_repeated += training.scheduler.num_repeated
    if not position.is_done:  # a later one exports
        run.reporter.first_step = max(run.reporter.first_step, position.step)
        run.export(model, fit=position.number, element_spec=feed.element_spec)
    return model.history


def _checked_steps(run: TaskRun, request: FitRequest) -> int:
    """Returns `steps_per_epoch`. Raises UnsupportedError for what TensorFlow would refuse later."""
    model, data, partitioner = request.model, request.train_data, run.assignment.job.partitioner
    adapters.check(model, run.strategy)
    if partitioner is not None and not adapters.adapter_of(model).has_sharded_variables:
        raise UnsupportedError(
            f"model {model.name} is of Keras 3, which has no sharded variables, and partitioner is "
            f"{partitioner}; build it with tf.keras under --keras legacy, or drop --partitioner"
        )
    if request.accumulate != 1:
        raise UnsupportedError(
            f"ctx.fit got accumulate={request.accumulate}, and under parameter_server each worker updates "
            "the weights by every batch of its own; leave it out and make the batches larger, or use another "
            "strategy"
        )
    if model.run_eagerly:
        raise UnsupportedError(
            f"model {model.name} was compiled with run_eagerly=True, and workers run graphs; drop it"
        )
    if isinstance(data, Batches):
        return request.steps_per_epoch or data.steps_per_epoch
    train_data.checked_function(data, "train_data")
    if request.steps_per_epoch is None:
        raise UnsupportedError(
            "ctx.fit needs steps_per_epoch under parameter_server: the workers take batches as they come, "
            "so no dataset's end ends an epoch; give steps_per_epoch=number of examples // batch size"
        )
    return request.steps_per_epoch


class _Training:
    """The epochs of one `fit`."""

    def __init__(
        self,
        run: TaskRun,
        model: Any,
        *,
        metrics: LocalMetrics,
        feed: Feed,
        first_step: int,
        position: FitPosition,
        calls: CallbackCalls,
        save: Callable[[], None],
        num_steps: int,
        staleness: int,
    ) -> None:
        """Takes what `fit` has made; `num_steps` are left in all, from `first_step` of the data on."""
        self._run = run
        self._model = model
        self._metrics = metrics
        self._position = position
        self._calls = calls
        self._save = save
        self._train_step = adapters.adapter_of(model).converted(model, model.train_step)
        # What the user's own train_step returns besides the metrics.
        self._returned = self._probe(feed) if adapters.has_own(model, "train_step") else None
        steps = PackedSteps(
            run,
            self._step,
            feed=feed,
            zeros=self._zeros,
            variables=model.trainable_variables,
            staleness=staleness,
        )
        sizes = ClosureSizes(num_workers=run.assignment.num_workers, total=num_steps, staleness=staleness)
        self.scheduler = StepScheduler(run, steps, sizes, first_step=first_step)

    def _zeros(self) -> tuple[tf.Tensor, ...]:
        return (*self._metrics.zeros(), tf.zeros([len(self._names)]))

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self._returned is None else self._returned.names

    def _step(self, element: Any, state: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        if self._returned is None:
            run = partial(self._run.strategy.run, self._train_step, args=(element,))
            metrics, _ = self._metrics.updated(state[:-1], run)
            return (*metrics, state[-1])
        metrics, scalars = self._metrics.updated(state[:-1], partial(self._returned.run, element))
        return (*metrics, state[-1] + scalars)

    def _probe(self, feed: Feed) -> ReturnedScalars | None:
        """Traces the train step for what it returns; None if it returns nothing."""
        returned = ReturnedScalars(self._run.strategy, self._train_step, model=self._model)
        returned.probe(feed.element_spec)
        returned.shown.note_derived(type(self._model).train_step)
        return returned if returned.names else None

    def run_epoch(self, epoch: int, num_steps: int) -> dict[str, Any]:
        """Runs what is left of the epoch; returns the metrics over all of it."""
        position = self._position
        self._model.reset_metrics()
        # Of a resumed epoch it restores what the metrics' variables held.
        self._calls.call("on_epoch_begin", epoch, {})
        tally = self._metrics.read() if position.step_in_epoch else self._metrics.tally()
        means = _Means(self._names)

        def on_done(count: int, state: Sequence[np.ndarray]) -> None:
            tally.add(state[:-1])
            means.add(count, state[-1])
            if schedule.is_due(step_before=position.step, step=position.step + count):
                self._metrics.write(tally)  # for the checkpoint, which the callbacks save
            first = position.step_in_epoch
            self._calls.batches(first, first + count - 1, _RunningLogs(lambda: self._logs(tally, means)))

        schedule = self._run.schedule

        def is_save_wanted() -> bool:
            return self._run.wants_save(position.step)

        def should_pause() -> bool:
            return is_save_wanted() or self._model.stop_training

        while position.step_in_epoch < num_steps and not self._model.stop_training:
            left = min(num_steps - position.step_in_epoch, schedule.steps_left(position.step))
            self.scheduler.run(left, on_done, should_pause=should_pause)
            self._run.reporter.progress.repeated(self._run.steps_repeated + self.scheduler.num_repeated)
            if is_save_wanted():
                self._metrics.write(tally)
                self._save()
        self._metrics.write(tally)
        return self._logs(tally, means)

    def _logs(self, tally: Tally, means: _Means) -> dict[str, Any]:
        shown = {} if self._returned is None else self._returned.shown.metrics
        return own_logs.joined(means.result(), self._metrics.results(tally), shown)


class _RunningLogs(UserDict[str, Any]):
    """The logs of the epoch so far, worked out only when a callback looks at them."""

    def __init__(self, work_out: Callable[[], dict[str, Any]]) -> None:
        self._work_out = work_out

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return self._work_out()


class _Means:
    """Means of what the user's own train step returned, over the steps of an epoch since its last restore."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sums = np.zeros(len(names))
        self._count = 0

    def add(self, count: int, sums: np.ndarray) -> None:
        self._count += count
        self._sums += sums

    def result(self) -> dict[str, float]:
        means = self._sums / max(self._count, 1)
        return {name: float(mean) for name, mean in zip(self._names, means, strict=True)}


def _words(logs: dict[str, Any]) -> str:
    return " - ".join(f"{name}: {value:.4f}" for name, value in floats(logs).items())
