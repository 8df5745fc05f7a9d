"""Keras callbacks around the user's own: restore, count, report, save. One pair for each `fit`.

Both callbacks of a pair share a `FitPosition`, which says where the `fit` stands. keras_fit.py and
parameter_server/fit.py put them into a `ctx.fit`; `ctx.callbacks()` returns them for a `fit` of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raydist.training.checkpointing.schedule import KeepSchedule
from raydist.training.checks import layer_notes
from raydist.training.checks.known_steps import Known
from raydist.training.cluster import collectives
from raydist.training.input import sources
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.reporting import reporter
from raydist.training.reporting.logs import by_element, numbers
from raydist.training.stepping import fit_session, packing
from raydist.training.stepping.fit_session import FitHooks
from raydist.training.stepping.step_timing import PaceReport
from raydist.training.trainers import fit_position
from raydist.training.trainers.base import TaskRun
from raydist.training.trainers.fit_position import FitPosition


def run_callbacks(
    run: TaskRun,
    *,
    position: FitPosition | None,
    element_spec: Any,
    users: Sequence[Any] = (),
    begin: Callable[[int], sources.Source] | None = None,
) -> tuple[Any, Any]:
    """Returns the callback that runs before the user's and the one that runs after them.

    Args:
      position: None where `begin` sets it.
      element_spec: Structure of one replica's batch; None where the user calls `fit`.
      users: The user's callbacks; where the user calls `fit`, raydist's `fit` names them.
      begin: Takes the first epoch that Keras was given, and returns where the training data begin; None for
        their beginning.
    """
    pair = _Progress(position, element_spec, begin), _Checkpoint(run, position)
    pair[1].run_around(users)
    return pair


class _Progress(FitHooks):
    """Restores before training, and counts and reports before the user's callbacks run."""

    place = -1.0

    def __init__(
        self,
        position: FitPosition | None,
        element_spec: Any,
        begin: Callable[[int], sources.Source] | None,
    ) -> None:
        self.begin = begin
        self.position: Any = position
        self._element_spec = element_spec
        self._pace = PaceReport()

    def on_train_begin(self, logs: Any = None) -> None:
        session = fit_session.current()
        if session is None and self.begin is not None:  # --no-patch-keras
            self.begin(0)
        position, model = self.position, self.model
        first = sources.Start(epoch=position.first_epoch(self.params["epochs"]), step=position.step_in_epoch)
        position.element_spec = None if session is None else session.element_spec
        adapter_of(model).begin_fit(model, self._element_spec, first=first, session=session)
        is_grouped = session is not None and session.source.groups.size > 1
        layers = layer_notes.notes_on(model, position.run.strategy, is_grouped=is_grouped)
        length = layer_notes.note_on_length(model, self.params, initial_epoch=position.initial_epoch)
        for sentence in (*layers, *fit_position.unsaved(model)):
            position.run.reporter.note(sentence)
        if length is not None and not is_grouped:
            reporter.detail(length)
        position.restore(model)
        position.check_equal(model)
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        num_steps = None
        if steps and epochs:
            in_earlier_fits = position.step - position.start.epoch * steps - position.step_in_epoch
            num_steps = in_earlier_fits + steps * (epochs - position.initial_epoch)
        if position.is_done:
            return
        progress = position.run.reporter.progress
        progress.expect(num_steps=num_steps, num_epochs=epochs)
        if position.start == sources.Start():
            progress.training_begins("fit", number=position.number + 1, step=position.step)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        position = self.position
        if epoch == position.epoch and position.history and not self.model.history.epoch:
            self._fill_history()
        if position.step_in_epoch and position.state is not None:
            # After Keras has reset them: what the epoch's logs hold of the steps before the restore.
            position.run.checkpoints.restore(position.state, {"metrics": list(self.model.metrics)})

    def on_train_end(self, logs: Any = None) -> None:
        position = self.position
        self._pace.finish(position.run.reporter)
        if not position.is_done:
            # A callback may have ended it early: no step is missed any more.
            position.run.reporter.progress.expect(num_steps=position.step, num_epochs=position.epoch)
        if position.history and not self.model.history.epoch:
            self._fill_history()  # no epoch was left to train
        if position.state is not None and position.state.is_stopped:
            self.model.stop_training = True

    def _fill_history(self) -> None:
        """Adds the epochs before the restore, which belong to the same training."""
        for past, logs in enumerate(self.position.history, start=self.position.initial_epoch):
            self.model.history.epoch.append(past)
            for name, value in logs.items():
                self.model.history.history.setdefault(name, []).append(value)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        position = self.position
        # `batch` counts from the epoch's beginning, also in a resumed run, and is the last step of a call.
        step_in_epoch = batch + 1
        position.step_before = position.step
        position.step += step_in_epoch - position.step_in_epoch
        position.step_in_epoch = step_in_epoch
        self._pace.completed(position.run.reporter, logs, step=position.step, epoch=position.epoch)
        position.run.checkpoints.check()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.position.run.reporter.progress.beat()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        position = self.position
        if logs is not None and not logs and position.step_in_epoch:
            # Data of unknown size, which ended where the run resumed: the restored metrics have it all.
            logs.update(self.model.get_metrics_result())
        metrics = numbers(logs)
        position.epoch_size = position.step_in_epoch
        position.epoch, position.step_in_epoch = epoch + 1, 0
        if (session := fit_session.current()) is not None:
            session.source.epoch_ended()
        position.history.append(metrics)
        position.run.reporter.advance(position.step, epoch=position.epoch)
        position.run.reporter.report(by_element(metrics), step=position.step, epoch=position.epoch)


class _Checkpoint(FitHooks):
    """Saves after the user's callbacks have run, so that what they changed is in it."""

    place = 1.0

    def __init__(self, run: TaskRun, position: FitPosition | None) -> None:
        self.position: Any = position
        # Under ParameterServer the loop of closures asks, once none of them is under way.
        self._is_alone = run.coordinator is None and collectives.is_alone(run.strategy)
        self._users: Sequence[Any] = ()
        self._is_put_off = False
        # Under ParameterServer there is no moment between the steps of all workers.
        self._keeps = run.checkpoints.keeps and run.coordinator is None
        self._keeping = KeepSchedule()

    def run_around(self, callbacks: Sequence[Any]) -> None:
        """Takes the user's callbacks, whose states are saved and restored."""
        self._users = tuple(callbacks)

    def save(self) -> None:
        self.position.save(self.model, self._users)

    def on_train_begin(self, logs: Any = None) -> None:
        # After theirs, where Keras's own start over.
        self.position.restore_callbacks(self._users)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # In an epoch that continues, a LearningRateScheduler had changed the rate before the checkpoint.
        rate, self.position.restored_rate = self.position.restored_rate, None
        if rate is not None:
            self.model.optimizer.learning_rate = rate

    def pauses(self) -> packing.Pauses:
        """Returns when to save between two calls."""
        position, run = self.position, self.position.run
        return packing.Pauses(
            limit=lambda: run.schedule.steps_left(position.step),
            wants_save=None if self._is_alone else lambda: run.wants_save(position.step),
            save=self.save,
            keep=self._keep_within_epoch,
            # One worker has costs, and the mean over all is agreed on.
            keep_cost_s=lambda: self._keeping.cost_s * run.assignment.num_workers if self._keeps else None,
            agree_on_keeping=lambda cost_s, call_s: self._keeping.agreed(cost_s, call_s=call_s),
        )

    def known(self) -> Known | None:
        """Returns what is known of the training step, where it is kept with the state."""
        return self.position.known if self._keeps else None

    def _keep_within_epoch(self) -> None:
        self._keeping.called()
        # If it is 0, the epoch's end has kept the state, or something else has begun since.
        if self.position.step_in_epoch:
            self._keep()

    def _keep(self) -> None:
        if self._keeps and not self.position.is_done:
            position = self.position
            position.run.keep_by(self._keeping, lambda: position.keep(self.model, self._users))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        position, run = self.position, self.position.run
        is_due = run.schedule.is_due(step_before=position.step_before, step=position.step)
        if is_due or (self._is_alone and run.wants_save(position.step)):
            # At an epoch's last step only once the epoch has ended: a run that resumed in between would
            # have nothing left of it, so neither its values nor its shuffle.
            if position.step_in_epoch == (self.params.get("steps") or position.epoch_size):
                self._is_put_off = True
            else:
                self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        history = self.position.history
        if history:
            history[-1] = {**history[-1], **numbers(logs)}  # with what the user's callbacks have added
        if self._is_put_off or self.position.run.schedule.is_due_at_epoch_end(self.position.epoch):
            self._is_put_off = False
            self.save()
        else:
            self._keep()

    def on_train_end(self, logs: Any = None) -> None:
        position, reporter = self.position, self.position.run.reporter
        position.end(self.model, self._users)
        position.run.checkpoints.finish()
        if position.state is not None or not position.is_done:
            # The next training counts from here, a plain `model.fit` too.
            reporter.first_step = max(reporter.first_step, position.step)


def callbacks_of(run: TaskRun) -> list[Any]:
    """Returns callbacks for the user's own `model.fit`; see TrainContext.callbacks."""

    def begin(initial_epoch: int) -> sources.Source:
        position = FitPosition.of_next_fit(run, initial_epoch=initial_epoch)
        before.position = after.position = position
        return sources.KerasSource.at(position.start)

    before, after = run_callbacks(run, position=None, element_spec=None, begin=begin)
    return [before, after]
