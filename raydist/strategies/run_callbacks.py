"""Keras callbacks around the user's own: restore, count, report, save. One pair for each `fit`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from raydist.strategies import agreement, layers, packing, resume

if TYPE_CHECKING:
    from raydist.strategies.context import TaskContext

LOCAL_REPORT_INTERVAL_S = 0.5


def run_callbacks(counter: Counter, base: type, *, element_spec: Any) -> tuple[Any, Any]:
    """Returns the callback that runs before the user's and the one that runs after them.

    Args:
      base: The Callback class of the model's Keras.
      element_spec: Structure of one replica's batch; None where the user calls `fit`.
    """
    # tf_keras: logs as tensors, which are read only when they are reported.
    marks = {"_supports_tf_logs": True, "takes_packed_steps": True}
    before = type("RaydistProgress", (_Progress, base), marks)
    after = type("RaydistCheckpoint", (_Checkpoint, base), marks)
    pair = before(counter, element_spec), after(counter)
    packing.set_pauses(pair[1].pauses())
    return pair


class Counter:
    """Where this `fit` stands: shared by the callback that runs before the user's and the one after.

    A train function may call `fit` several times, to train one model in phases. The checkpoint says
    in which of them it was written: those before are not repeated, those after begin anew.

    Attributes:
      number: How many `fit`s came before this one. `is_done`: it ended before the checkpoint.
    """

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self.number = context.num_fits
        context.num_fits += 1
        newest = context.checkpoints.newest()
        self.state = newest if newest is not None and self.number <= newest.fit else None
        self.is_done = self.state is not None and self.number < self.state.fit
        here = self.state if not self.is_done else None
        self.step = self.state.step if self.state else context.step
        self.epoch = here.epoch if here else 0
        self.step_in_epoch = here.step_in_epoch if here else 0
        self.step_before = self.step
        self.history: list[Mapping[str, float]] = list(here.history) if here else []

    def trackables(self, model: Any) -> dict[str, Any]:
        return {"model": model, "optimizer": model.optimizer}

    def save(self, model: Any) -> None:
        if self.context.checkpoints.last_saved_step != self.step:
            metrics = {"metrics": list(model.metrics)} if self.step_in_epoch else {}
            self.context.save_now(
                {**self.trackables(model), **metrics},
                step=self.step,
                epoch=self.epoch,
                step_in_epoch=self.step_in_epoch,
                history=tuple(self.history),
                fit=self.number,
            )


class _Progress:
    """Restores before training, and counts and reports before the user's callbacks run."""

    model: Any  # these two are set by Keras
    params: dict[str, Any]

    def __init__(self, counter: Counter, element_spec: Any) -> None:
        super().__init__()
        self._counter = counter
        self._element_spec = element_spec
        self._reported_at_s = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        counter, model = self._counter, self.model
        if not isinstance(model, keras.Model):
            from raydist.strategies import legacy_keras

            legacy_keras.build(model, self._element_spec)
            epoch = self.params["epochs"] if counter.is_done else counter.epoch
            model._raydist_start = resume.Start(epoch=epoch, step=counter.step_in_epoch)
        elif self._element_spec is None:
            # keras: `fit` reads it right after on_train_begin, for BackupAndRestore.
            model._initial_epoch = self.params["epochs"] if counter.is_done else counter.epoch
        for sentence in layers.notes_on(model, counter.context.strategy):
            counter.context.note(sentence)
        if counter.state is not None:
            counter.context.checkpoints.restore(counter.state, counter.trackables(model))
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if epochs and (counter.is_done or counter.epoch >= epochs):
            self._fill_history()  # no epoch begins any more
        counter.context.progress.expect(
            num_steps=steps * epochs if steps and epochs else None, num_epochs=epochs
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        counter = self._counter
        if epoch == counter.epoch and counter.history and not self.model.history.epoch:
            self._fill_history()
        if counter.step_in_epoch and counter.state is not None:
            # After Keras has reset them: what the epoch's logs hold of the steps before the restore.
            counter.context.checkpoints.restore(counter.state, {"metrics": list(self.model.metrics)})

    def _fill_history(self) -> None:
        """Adds the epochs before the restore, which belong to the same training."""
        for past, logs in enumerate(self._counter.history):
            if hasattr(self.model.history, "epoch"):  # made by its own on_train_begin, which comes after ours
                self.model.history.epoch.append(past)
            for name, value in logs.items():
                self.model.history.history.setdefault(name, []).append(value)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        counter = self._counter
        # `batch` counts from the epoch's beginning, also in a resumed run, and is the last step of a call.
        step_in_epoch = batch + 1
        counter.step_before = counter.step
        counter.step += step_in_epoch - counter.step_in_epoch
        counter.step_in_epoch = step_in_epoch
        now = time.monotonic()
        metrics = None
        if now - self._reported_at_s >= LOCAL_REPORT_INTERVAL_S:
            self._reported_at_s = now
            metrics = floats(logs)
            counter.context.record_local(metrics, step=counter.step, epoch=counter.epoch)
        counter.context.progress.completed(counter.step, epoch=counter.epoch, local_metrics=metrics)
        counter.context.checkpoints.check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        counter = self._counter
        metrics = floats(logs)
        counter.epoch, counter.step_in_epoch = epoch + 1, 0
        resume.epoch_ended()
        counter.history.append(metrics)
        counter.context.progress.completed(counter.step, epoch=counter.epoch)
        counter.context.report_global(metrics, step=counter.step, epoch=counter.epoch)


class _Checkpoint:
    """Saves after the user's callbacks have run, so that what they changed is in it."""

    model: Any  # set by Keras

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter
        # Under ParameterServer the loop of closures asks, before it calls callbacks.
        strategy = counter.context.strategy
        self._is_alone = counter.context.coordinator is None and agreement.is_alone(strategy)

    def pauses(self) -> packing.Pauses:
        counter, context = self._counter, self._counter.context
        return packing.Pauses(
            limit=lambda: context.cadence.steps_left(counter.step),
            wants_save=None if self._is_alone else lambda: context.wants_save(counter.step),
            save=lambda: counter.save(self.model),
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        counter, context = self._counter, self._counter.context
        is_due = context.cadence.is_due(step_before=counter.step_before, step=counter.step)
        if is_due or (self._is_alone and context.wants_save(counter.step)):
            counter.save(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._counter.context.cadence.is_due_at_epoch_end(self._counter.epoch):
            self._counter.save(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self._counter.save(self.model)
        self._counter.context.checkpoints.finish()


def floats(logs: Any) -> dict[str, float]:
    """Returns the scalars of Keras's logs."""
    values = tf.nest.map_structure(
        lambda value: value.numpy() if hasattr(value, "numpy") else value, dict(logs or {})
    )
    return {name: float(value) for name, value in values.items() if getattr(value, "ndim", 0) == 0}
