"""Keras callbacks around the user's own: restore, count, report, save. One pair for each `fit`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.checkpointing import callback_state
from raydist.training.cluster import collectives
from raydist.training.input import resume
from raydist.training.input.input_clock import InputReport
from raydist.training.replicas import layer_notes
from raydist.training.stepping import fit_session, packing
from raydist.training.trainers import model_state, random_state

if TYPE_CHECKING:
    from raydist.training.context import TaskContext

LOCAL_REPORT_INTERVAL_S = 0.5


def run_callbacks(
    counter: Counter,
    base: type,
    *,
    element_spec: Any,
    users: Sequence[Any] = (),
    resumption: resume.Resumption | None = None,
) -> tuple[Any, Any]:
    """Returns the callback that runs before the user's and the one that runs after them.

    Args:
      base: The Callback class of the model's Keras.
      element_spec: Structure of one replica's batch; None where the user calls `fit`.
      users: The user's callbacks; where the user calls `fit`, its mended one tells them.
      resumption: Where the training data begin; None for their beginning.
    """
    # tf_keras: logs as tensors, which are read only when they are reported.
    marks = {"_supports_tf_logs": True, "takes_packed_steps": True}
    before = type("RaydistProgress", (_Progress, base), marks)
    after = type("RaydistCheckpoint", (_Checkpoint, base), marks)
    pair = before(counter, element_spec, resumption), after(counter)
    pair[1].run_around(users)
    return pair


class Counter:
    """Where this `fit` stands: shared by the callback that runs before the user's and the one after.

    A train function may call `fit` several times, to train one model in phases. The checkpoint says
    in which of them it was written: those before are not repeated, those after begin anew.

    Attributes:
      number: How many `fit`s came before this one. `is_done`: it ended before the checkpoint.
      here: The checkpoint, where it was written in this `fit`.
      epoch_size: Steps of the epoch before, where this process has seen its end. Of an epoch of unknown size
        a checkpoint may hold all steps, and nothing be left of it when the run resumes there.
    """

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self.number = context.num_fits
        context.num_fits += 1
        newest = context.checkpoints.newest()
        self.state = newest if newest is not None and self.number <= newest.fit else None
        self.is_done = self.state is not None and self.number < self.state.fit
        self.here = here = self.state if not self.is_done else None
        self.step = self.state.step if self.state else context.step
        self.epoch = here.epoch if here else 0
        self.step_in_epoch = here.step_in_epoch if here else 0
        self.step_before = self.step
        self.epoch_size: int | None = None
        self.restored_rate: float | None = None
        self.history: list[Mapping[str, float]] = list(here.history) if here else []

    def first_epoch(self, epochs: int) -> int:
        """Returns the epoch to begin with; `epochs` where nothing is left to do."""
        is_over = self.is_done or (self.state is not None and self.state.is_stopped)
        return epochs if is_over else min(self.epoch, epochs)

    def restore(self, model: Any) -> None:
        """Restores what the checkpoint has of the model, its optimizer and random state, if there is one."""
        state, context = self.state, self.context
        if state is None:
            return
        saved = state.groups()
        if self.is_done and (prefix := _group_of(model, context.fitted, self.number)) in saved:
            # What this fit has trained is another model than the one of the fit that wrote the checkpoint.
            earlier = _groups_of_earlier(model, prefix)
            context.checkpoints.restore(state, {name: one for name, one in earlier.items() if name in saved})
            return
        with context.strategy.scope():
            random_state.make_global_generators(saved.intersection(random_state.GROUPS))
        groups = _groups_beside(model)
        known = {name: variables for name, variables in groups.items() if name in saved}
        context.checkpoints.restore(state, {"model": model, "optimizer": model.optimizer, **known})
        if lost := saved.intersection(_GROUPS_BESIDE) - known.keys():
            context.note(
                f"the checkpoint has state that nothing in the model takes up: {', '.join(sorted(lost))}"
            )
        if model_state.GROUP in groups.keys() - saved:
            context.note(f"the checkpoint has no {model_state.describe(model)}; they begin anew")
        if state.eager_seeds is not None:
            tf_private.set_eager_seeds(state.eager_seeds)
        self.restored_rate = _rate_of(model.optimizer) if self.step_in_epoch else None

    def restore_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Gives the user's callbacks their states back. A `fit` that is done has them from its own time."""
        if self.state is None or self.is_done:
            return
        states = callback_state.unpack(dict(self.state.callbacks), self.state.arrays())
        sentences = callback_state.restore(callbacks, states)
        if self.context.is_chief:  # others may have fewer callbacks, and the checkpoint is the chief's
            for sentence in sentences:
                self.context.note(sentence)

    def save(self, model: Any, callbacks: Sequence[Any]) -> None:
        """Saves, unless this step is saved already. Every task calls it at the same step."""
        if self.context.checkpoints.last_saved_step == self.step:
            return
        fitted = self.context.fitted
        trackables = {"model": model, "optimizer": model.optimizer, **_groups_beside(model)}
        for number, one in fitted:
            if one is not model:
                trackables.update(_groups_of_earlier(one, _group_of(one, fitted, number)))
        if self.step_in_epoch:
            trackables["metrics"] = list(model.metrics)
        # Asked in every task, because a callback may read a metric for it, which is a collective.
        states = callback_state.states_of(callbacks)
        packed, arrays = callback_state.pack(states) if self.context.is_chief else ({}, {})
        self.context.save_now(
            trackables,
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            history=tuple(self.history),
            fit=self.number,
            is_stopped=callback_state.has_stopped(callbacks),
            callbacks=packed,
            arrays=arrays,
            eager_seeds=tf_private.eager_seeds(),
        )


class _Progress:
    """Restores before training, and counts and reports before the user's callbacks run."""

    raydist_place = -1
    model: Any  # these two are set by Keras
    params: dict[str, Any]

    def __init__(self, counter: Counter, element_spec: Any, resumption: resume.Resumption | None) -> None:
        super().__init__()
        self.resumption = resumption  # a `fit_session` looks for it
        self._counter = counter
        self._element_spec = element_spec
        self._reported_at_s = 0.0
        self._input = InputReport()

    def run_around(self, callbacks: Sequence[Any]) -> None:
        """Nothing here depends on the user's callbacks."""

    def on_train_begin(self, logs: Any = None) -> None:
        counter, model = self._counter, self.model
        first = resume.Start(epoch=counter.first_epoch(self.params["epochs"]), step=counter.step_in_epoch)
        session = fit_session.current()
        if not isinstance(model, keras.Model):
            from raydist.training.keras_patches.tf_keras import build

            build.build(model, self._element_spec)
            if session is not None:
                session.first = first
        elif self._element_spec is None:
            # keras: `fit` reads it right after on_train_begin, for BackupAndRestore.
            model._initial_epoch = first.epoch
            if session is not None:
                session.first = first
        for sentence in (*layer_notes.notes_on(model, counter.context.strategy), *model_state.unsaved(model)):
            counter.context.note(sentence)
        counter.restore(model)
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        num_steps = None
        if steps and epochs:
            in_earlier_fits = counter.step - counter.epoch * steps - counter.step_in_epoch
            num_steps = in_earlier_fits + steps * epochs
        counter.context.progress.expect(num_steps=num_steps, num_epochs=epochs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        counter = self._counter
        if epoch == counter.epoch and counter.history and not self.model.history.epoch:
            self._fill_history()
        if counter.step_in_epoch and counter.state is not None:
            # After Keras has reset them: what the epoch's logs hold of the steps before the restore.
            counter.context.checkpoints.restore(counter.state, {"metrics": list(self.model.metrics)})

    def on_train_end(self, logs: Any = None) -> None:
        self._input.finish(self._counter.context)
        # A callback may have ended it early: no step is missed any more.
        self._counter.context.progress.expect(num_steps=self._counter.step, num_epochs=self._counter.epoch)
        if self._counter.history and not self.model.history.epoch:
            self._fill_history()  # no epoch was left to train

    def _fill_history(self) -> None:
        """Adds the epochs before the restore, which belong to the same training."""
        for past, logs in enumerate(self._counter.history):
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
            measured = {**metrics, **self._input.update()}
            counter.context.record_local(measured, step=counter.step, epoch=counter.epoch)
        counter.context.progress.completed(counter.step, epoch=counter.epoch, local_metrics=metrics)
        counter.context.checkpoints.check()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._counter.context.progress.beat()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        counter = self._counter
        if logs is not None and not logs and counter.step_in_epoch:
            # Data of unknown size, which ended where the run resumed: the restored metrics have it all.
            logs.update(self.model.get_metrics_result())
        metrics = floats(logs)
        counter.epoch_size = counter.step_in_epoch
        counter.epoch, counter.step_in_epoch = epoch + 1, 0
        if self.resumption is not None:
            self.resumption.epoch_ended()
        counter.history.append(metrics)
        counter.context.progress.completed(counter.step, epoch=counter.epoch)
        counter.context.report_global(metrics, step=counter.step, epoch=counter.epoch)


class _Checkpoint:
    """Saves after the user's callbacks have run, so that what they changed is in it."""

    raydist_place = 1
    model: Any  # these two are set by Keras
    params: dict[str, Any]

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter
        # Under ParameterServer the loop of closures asks, once none of them is under way.
        strategy = counter.context.strategy
        self._is_alone = counter.context.coordinator is None and collectives.is_alone(strategy)
        self._users: Sequence[Any] = ()
        self._is_put_off = False

    def run_around(self, callbacks: Sequence[Any]) -> None:
        """Takes the user's callbacks, whose states are saved and restored."""
        self._users = tuple(callbacks)

    def save(self) -> None:
        self._counter.save(self.model, self._users)

    def on_train_begin(self, logs: Any = None) -> None:
        # After theirs, where Keras's own begin anew.
        self._counter.restore_callbacks(self._users)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # In an epoch that goes on, a LearningRateScheduler had changed the rate before the checkpoint.
        rate, self._counter.restored_rate = self._counter.restored_rate, None
        if rate is not None:
            self.model.optimizer.learning_rate = rate

    def pauses(self) -> packing.Pauses:
        """Returns when to save between two calls; a `fit_session` looks for it."""
        counter, context = self._counter, self._counter.context
        return packing.Pauses(
            limit=lambda: context.cadence.steps_left(counter.step),
            wants_save=None if self._is_alone else lambda: context.wants_save(counter.step),
            save=self.save,
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        counter, context = self._counter, self._counter.context
        is_due = context.cadence.is_due(step_before=counter.step_before, step=counter.step)
        if is_due or (self._is_alone and context.wants_save(counter.step)):
            # At an epoch's last step only once the epoch has ended: a run that resumed in between would
            # have nothing left of it, so neither its values nor its shuffle.
            if counter.step_in_epoch == (self.params.get("steps") or counter.epoch_size):
                self._is_put_off = True
            else:
                self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        history = self._counter.history
        if history:
            history[-1] = {**history[-1], **floats(logs)}  # with what the user's callbacks have added
        if self._is_put_off or self._counter.context.cadence.is_due_at_epoch_end(self._counter.epoch):
            self._is_put_off = False
            self.save()

    def on_train_end(self, logs: Any = None) -> None:
        self.save()
        context = self._counter.context
        context.fitted.append((self._counter.number, self.model))
        context.checkpoints.finish()


def _group_of(model: Any, fitted: Sequence[tuple[int, Any]], number: int) -> str:
    """Returns the group of a model that another fit trains than the one under way: by its first fit.

    Args:
      number: Of the fit that trains it now.
    """
    return f"fit-{next((first for first, one in fitted if one is model), number)}"


def _groups_of_earlier(model: Any, prefix: str) -> dict[str, Any]:
    """Returns the groups of a model that an earlier fit has trained, and that a later one may train on."""
    own = {
        "optimizer": model.optimizer,
        **random_state.groups_of_layers(model),
        **model_state.groups_of(model),
    }
    return {prefix: model, **{f"{prefix}-{name}": one for name, one in own.items()}}


_GROUPS_BESIDE = (*random_state.GROUPS, model_state.GROUP)


def _groups_beside(model: Any) -> dict[str, list[Any]]:
    """Returns what a checkpoint has beside the variables that Keras lists, in groups."""
    return {**random_state.groups_of(model), **model_state.groups_of(model)}


def _rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer of either Keras; None where a schedule gives it."""
    # A schedule's rate is the optimizer's own affair; tf_keras shows it as a variable all the same.
    given = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if any(base.__name__ == "LearningRateSchedule" for base in type(given).__mro__):
        return None
    rate = getattr(optimizer, "learning_rate", None)
    variable = rate if isinstance(rate, tf.Variable) else getattr(rate, "value", None)
    return float(variable.numpy()) if isinstance(variable, tf.Variable) else None


def floats(logs: Any) -> dict[str, float]:
    """Returns the scalars of Keras's logs."""
    values = tf.nest.map_structure(
        lambda value: value.numpy() if hasattr(value, "numpy") else value, dict(logs or {})
    )
    return {name: float(value) for name, value in values.items() if getattr(value, "ndim", 0) == 0}
