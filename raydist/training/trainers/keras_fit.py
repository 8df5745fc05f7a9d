"""SynchronousTrainer: Keras's own `fit` and a loop of steps, on the replicas of this task and its peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.training.input import recipes, resume, train_data
from raydist.training.keras_patches import adapters
from raydist.training.trainers import class_weights, custom_loop, evaluation
from raydist.training.trainers.fit_position import FitPosition
from raydist.training.trainers.run_callbacks import run_callbacks
from raydist.training.trainers.task_run import TaskRun
from raydist.training.trainers.trainer import EvaluateRequest, FitRequest, LoopRequest


class SynchronousTrainer:
    """Trains under every strategy whose replicas take each step together."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    def fit(self, request: FitRequest) -> Any:
        """Keras's own `fit`, with reports, checkpoints and restore around it."""
        run, model, epochs = self._run, request.model, request.epochs
        base = adapters.adapter_of(model).library.callbacks.Callback
        adapters.check(model, run.strategy)
        position = FitPosition(run, initial_epoch=request.initial_epoch)
        run.trains_on(request.train_data, resumed=position.here)
        dataset, steps_per_epoch = self._train_data(request, position)
        validation_data, validation_steps = self._validation_data(request)
        if position.is_done and steps_per_epoch is None and isinstance(dataset, tf.data.Dataset):
            # A later fit on the same data shuffles on from here.
            resume.drop_passes(dataset, epochs - request.initial_epoch)
        before, after = run_callbacks(
            position,
            base,
            element_spec=resume.element_spec(dataset),
            users=tf.nest.flatten(list(request.callbacks)),
            resumption=resume.Resumption(position.start),
        )
        history = model.fit(
            dataset,
            epochs=epochs,
            initial_epoch=position.first_epoch(epochs),
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            validation_steps=validation_steps,
            validation_freq=request.validation_freq,
            callbacks=[before, *request.callbacks, after],
            verbose=evaluation.verbosity(run, request.verbose, default=2),
        )
        if not position.is_done:  # a later one exports
            run.reporter.first_step = max(run.reporter.first_step, position.step)
            run.export(model, fit=position.number)
        return history

    def evaluate(self, request: EvaluateRequest) -> dict[str, float]:
        return evaluation.evaluate(self._run, request)

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        """`strategy.run` in a loop of our own, several steps in each `tf.function`."""
        span = custom_loop.begin(self._run, request)
        return {} if span is None else custom_loop.run_steps(self._run, request, span)

    def _train_data(self, request: FitRequest, position: FitPosition) -> tuple[Any, int | None]:
        """Returns the data set from the position on, and an epoch's steps; None where its end ends one."""
        data, steps_per_epoch, strategy = request.train_data, request.steps_per_epoch, self._run.strategy
        data = class_weights.applied(data, request)
        if not isinstance(data, Batches):
            return train_data.read(data, strategy, auto_shard=self._run.auto_shard), steps_per_epoch
        steps_per_epoch = steps_per_epoch or data.steps_per_epoch
        recipes.check_length(data, (request.epochs - request.initial_epoch) * steps_per_epoch)
        start_step = position.start.epoch * steps_per_epoch + position.start.step
        return recipes.parts_of_workers(data, strategy, start_step=start_step), steps_per_epoch

    def _validation_data(self, request: FitRequest) -> tuple[Any, int | None]:
        data, strategy, steps = request.validation_data, self._run.strategy, request.validation_steps
        if isinstance(data, Batches):
            # One iterator goes from epoch to epoch; tf_keras wants the number of steps.
            return recipes.parts_of_workers(data.for_epochs(None), strategy), steps or data.steps_per_epoch
        if isinstance(data, tf.data.Dataset) or callable(data):
            data = train_data.read(data, strategy, auto_shard=self._run.auto_shard)
        return data, steps
