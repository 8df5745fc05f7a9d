"""ctx.fit under ParameterServerStrategy, for both Kerases: the chief schedules, the workers train.

Keras 3 has no `fit` for it (tensorflow-notes.md#keras-3-under-parameterserverstrategy), so that of its models
comes here, and tf_keras's takes one closure per `steps_per_execution` and keeps metrics on the ps. Here
closures hold as many steps as fill half a second, and metrics travel with their results, so that each step of
the budget is counted once (closures.py, returned_values.py).
"""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
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
from raydist.training.parameter_server.train_input import Feed
from raydist.training.replicas import step_logs
from raydist.training.reporting.logs import floats
from raydist.training.stepping.callbacks import CallbackCalls, prepared
from raydist.training.stepping.packing import hooks_of_test_batches, watches_batches
from raydist.training.trainers import fit_data
from raydist.training.trainers.base import FitRequest, TaskRun
from raydist.training.trainers.fit_position import FitPosition
from raydist.training.trainers.run_callbacks import run_callbacks


def fit(run: TaskRun, request: FitRequest, *, sources: SharedSources) -> Any:
    """Trains the model from where the newest checkpoint ended; returns its `History`."""
    request = fit_data.resolved(request, seed=run.data_seed)
    model, epochs, callbacks = request.model, request.epochs, tf.nest.flatten(list(request.callbacks))
    _check(run, request)
    if not isinstance(request.train_data, Batches):
        function = train_data.function_of(request.train_data, "train_data")
        request = dataclasses.replace(request, train_data=function)
    steps_per_epoch = request.steps_per_epoch or _num_batches(run, request.train_data)
    adapter = adapters.adapter_of(model)
    position = FitPosition.of_next_fit(run, initial_epoch=request.initial_epoch)
    skip = position.start.epoch * steps_per_epoch + position.start.step
    run.trains_on(request.train_data, resumed=position.here)
    data = fit_data.applied(request.train_data, request)
    recipes.check_length(data, (epochs - request.initial_epoch) * steps_per_epoch)
    feed = train_input.read(run, data, sources=sources, skip=skip)
    base = adapter.library.callbacks.Callback
    before, after = run_callbacks(run, position=position, element_spec=feed.element_spec, users=callbacks)
    adapter.build(model, feed.element_spec)
    calls = CallbackCalls(
        model,
        prepared([before, *callbacks, after], base, run.strategy),
        history=adapter.library.callbacks.History(),
        params={"epochs": epochs, "steps": steps_per_epoch, "verbose": 2},
    )
    calls.call("on_train_begin", {})  # restores
    check_variables(variables.variables_of("model", model))
    metrics = LocalMetrics(model)
    evaluation = None
    if request.validation_data is not None and not run.assignment.job.evaluator:
        _check_test_hooks(callbacks, base)
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
        is_watched=any(watches_batches(one, base) for one in callbacks),
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
        run.export(model, fit=position.number, element_spec=feed.element_spec)
    return model.history


def _num_batches(run: TaskRun, data: Any) -> int:
    return data.steps_per_epoch if isinstance(data, Batches) else train_input.num_batches(run, data)


def _check(run: TaskRun, request: FitRequest) -> None:
    """Raises UnsupportedError for what TensorFlow would refuse later."""
    model, partitioner = request.model, run.assignment.job.partitioner
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


def _check_test_hooks(callbacks: Sequence[Any], base: type) -> None:
    """Raises UnsupportedError for hooks at each batch of a validation, which the workers do as a whole."""
    for one in callbacks:
        if hooks := hooks_of_test_batches(one, base):
            raise UnsupportedError(
                f"callback {type(one).__name__} has {' and '.join(hooks)}, and under parameter_server each "
                "worker evaluates its part of validation_data as a whole; use on_test_begin, on_test_end or "
                "on_epoch_end, or call ctx.evaluate"
            )


class _Training:
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
        is_watched: bool,
    ) -> None:
        """Takes what `fit` has made.

        Args:
          num_steps: Steps that are left in all, from `first_step` of the data on.
          is_watched: Whether a callback of the user's has something to do at each batch.
        """
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
        )
        sizes = ClosureSizes(
            num_workers=run.assignment.num_workers,
            total=num_steps,
            fixed=1 if is_watched else None,
        )
        self.scheduler = StepScheduler(run, steps, sizes, first_step=first_step, is_watched=is_watched)

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
        return (*metrics, scalars)

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
        begun = position.step_in_epoch
        returned: dict[str, float] = {}

        def on_begin(count: int) -> None:
            nonlocal begun
            first, begun = begun, begun + count
            self._calls.call("on_train_batch_begin", first, {})

        def on_done(count: int, state: Sequence[np.ndarray]) -> None:
            tally.add(state[:-1])
            returned.update(zip(self._names, map(float, state[-1]), strict=True))
            if schedule.is_due(step_before=position.step, step=position.step + count):
                self._metrics.write(tally)  # for the checkpoint, which the callbacks save
            last, is_stopped = position.step_in_epoch + count - 1, self._model.stop_training
            self._calls.call("on_train_batch_end", last, _RunningLogs(lambda: self._logs(tally, returned)))
            # Steps that were under way when a hook stopped the training do not undo that.
            self._model.stop_training = is_stopped or self._model.stop_training

        schedule = self._run.schedule

        def is_save_wanted() -> bool:
            return self._run.wants_save(position.step)

        def should_pause() -> bool:
            return is_save_wanted() or self._model.stop_training

        while position.step_in_epoch < num_steps and not self._model.stop_training:
            left = min(num_steps - position.step_in_epoch, schedule.steps_left(position.step))
            self.scheduler.run(left, on_done, on_begin=on_begin, should_pause=should_pause)
            self._run.reporter.progress.repeated(self._run.steps_repeated + self.scheduler.num_repeated)
            if is_save_wanted():
                self._metrics.write(tally)
                self._save()
        self._metrics.write(tally)
        return self._logs(tally, returned)

    def _logs(self, tally: Tally, returned: Mapping[str, float]) -> dict[str, Any]:
        """Returns the metrics so far, and what the last step has returned besides them, as Keras does."""
        shown = {} if self._returned is None else self._returned.shown.metrics
        return step_logs.joined(returned, self._metrics.results(tally), shown)


class _RunningLogs(UserDict[str, Any]):
    """The logs of the epoch so far, worked out only when a callback looks at them."""

    def __init__(self, work_out: Callable[[], dict[str, Any]]) -> None:
        self._work_out = work_out

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return self._work_out()


def _words(logs: dict[str, Any]) -> str:
    return " - ".join(f"{name}: {value:.4f}" for name, value in floats(logs).items())
