"""FitSession: what belongs to one call of Keras's `fit`, which the user calls or `ctx.fit`.

Keras makes the data handler inside `fit`, so nothing can be passed to it. The `fit` of either Keras's models
begins a session by `of_fit`, with raydist's callbacks in it, and one that reports where none of these does.
What the data handler needs is found in them, as they are arguments of that very `fit`. An `evaluate` before
it takes nothing away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from raydist.spec.tasks import TaskType
from raydist.training.checks import layer_notes
from raydist.training.checks.known_steps import Known
from raydist.training.cluster import equal_workers
from raydist.training.cluster.collectives import gather_over_workers, is_alone, means_over_workers
from raydist.training.cluster.strategy import is_distributed, is_parameter_server
from raydist.training.input.sources import Source, Start, UncountedSource
from raydist.training.reporting import reporter
from raydist.training.reporting.logs import floats
from raydist.training.reporting.reporter import Reporter
from raydist.training.stepping.callbacks import prepared, reads_batch_logs
from raydist.training.stepping.hooks import Hooks, in_run_order, users_of
from raydist.training.stepping.packing import Pauses, StepPacker, watches_batches
from raydist.training.stepping.step_timing import PaceReport
from raydist.training.user_code.code_names import keras_kinds


class FitHooks(Hooks):
    """Those that say where a `fit` begins, and what happens between two calls of steps.

    Attributes:
      begin: Takes the first epoch that Keras was given, and returns where the training data begin.
    """

    begin: Callable[[int], Source] | None = None

    def pauses(self) -> Pauses | None:
        """Returns what may have to happen between two calls; None for nothing."""
        return None

    def known(self) -> Known | None:
        """Returns what is known of the training step, where another process may take the `fit` up."""
        return None


class FitSession:
    """One call of `fit`.

    Attributes:
      first: Where `fit` begins, once a callback of raydist's knows; None leaves it to Keras.
      element_spec: The structure of a batch of the training data, once Keras has them.
      pauses: What may have to happen between two calls; None for nothing.
      known: What is known of the training step; None where no other process may take the `fit` up.
      is_free: Whether the number of steps of a call is free, as far as this worker knows.
      reads_batch_logs: Whether a callback in any worker reads the logs of training batches.
    """

    def __init__(self, model: Any, callbacks: Any, *, base: type, initial_epoch: int) -> None:
        """Takes the arguments of a `fit`, which begins.

        Args:
          callbacks: A list of them, or a CallbackList of the user's own.
          base: The Callback class of the model's Keras.
        """
        is_list = isinstance(callbacks, list)
        known: Sequence[Any] = callbacks if is_list else callbacks.callbacks
        hooks = [one for one in known if isinstance(one, FitHooks)]
        self.first: Start | None = None
        begin = next((one.begin for one in hooks if one.begin is not None), None)
        plain = UncountedSource if model.distribute_strategy.num_replicas_in_sync > 1 else Source
        self.source = plain() if begin is None else begin(initial_epoch)
        self.element_spec: Any = None
        self.pauses: Pauses | None = next((found for one in hooks if (found := one.pauses())), None)
        self.known: Known | None = next(filter(None, (one.known() for one in hooks)), None)
        # What a user's own CallbackList does at batches is unknown; eager steps are not worth packing.
        is_watched = not is_list or any(watches_batches(one, base) for one in known)
        self.is_free = not is_watched and not model.run_eagerly
        self.reads_batch_logs = reads_batch_logs(known, base, model.distribute_strategy)
        self._is_taken = False
        self._hooks = [one for one in known if isinstance(one, Hooks)]

    def end(self) -> None:
        """Tells raydist's hooks that the `fit` is over, whether it has trained to its end or not."""
        for one in self._hooks:
            one.fit_ended()

    def take(self) -> FitSession | None:
        """Returns itself the first time: the first data handler of a `fit` is that of the training data."""
        is_taken, self._is_taken = self._is_taken, True
        return None if is_taken else self


_current: ContextVar[FitSession | None] = ContextVar("raydist_fit_session", default=None)


def current() -> FitSession | None:
    """Returns the session of the innermost `fit` under way; None outside of every one."""
    return _current.get()


def taken_by_data_handler() -> FitSession | None:
    """Returns the session whose training data the calling data handler has; None in all other handlers."""
    session = _current.get()
    return None if session is None else session.take()


def packer_of(session: FitSession | None, steps_per_execution: int, strategy: Any) -> StepPacker:
    """Returns the packer of a data handler, which chooses only in a `fit`, for its training data."""
    if session is None:
        return StepPacker(steps_per_execution=steps_per_execution, packs=False)
    return StepPacker(
        steps_per_execution=steps_per_execution,
        agree=functools.partial(means_over_workers, strategy),
        packs=steps_per_execution == 1,
        is_free=session.is_free,
        pauses=session.pauses,
    )


_LOST = (
    "model.fit without ctx.callbacks() stores no checkpoints, so a new attempt trains from the start, and "
    "no model is exported; use ctx.fit, or pass callbacks=ctx.callbacks() for checkpoints alone"
)


def is_in_task() -> bool:
    """Whether this process runs a task, which shows each `fit`, also of a model outside of every strategy."""
    return reporter.current() is not None


@contextmanager
def of_fit(
    model: Any, arguments: dict[str, Any], library: Any, *, ahead: Sequence[Any] = ()
) -> Iterator[FitSession]:
    """Makes a session of a `fit` the current one inside, and puts raydist's callbacks into its arguments.

    Args:
      arguments: By name. A CallbackList of the user's own stays as it is.
      library: The module `callbacks` of the model's Keras.
      ahead: Callbacks that run before all others.
    """
    base, callbacks, strategy = library.Callback, arguments.get("callbacks"), model.distribute_strategy
    initial_epoch = arguments.get("initial_epoch") or 0
    if not isinstance(callbacks, library.CallbackList):
        given = in_run_order(tf.nest.flatten(callbacks or []))
        for one in given:
            if isinstance(one, Hooks):
                one.run_around(users_of(given))
        reports = _reports_in(given, initial_epoch=initial_epoch)
        callbacks = arguments["callbacks"] = [*ahead, *reports, *prepared(given, base, strategy)]
    session = FitSession(model, callbacks, base=base, initial_epoch=initial_epoch)
    if not is_distributed(strategy) or is_parameter_server(strategy):
        session.take()  # what Keras does by itself needs nothing of it
    token = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(token)
        session.end()


def _reports_in(callbacks: Sequence[Any], *, initial_epoch: int) -> list[Any]:
    """Returns the callbacks that a `fit` with `callbacks` gets besides them: none, or one that reports.

    A `fit` inside of another one belongs to that one, which counts its own steps. An evaluator reports
    checkpoints.

    Args:
      initial_epoch: The argument of that `fit`.
    """
    reports_to = reporter.current()
    if reports_to is None or current() is not None or reports_to.task.task_type is TaskType.EVALUATOR:
        return []
    if any(isinstance(one, Hooks) for one in callbacks):
        return []
    restores = any("BackupAndRestore" in keras_kinds(one) for one in callbacks)
    return [_Reports(reports_to, initial_epoch, is_lost=not (restores or reports_to.is_of_script))]


class _Reports(Hooks):
    """Counts the steps and reports the logs; saves and restores nothing."""

    def __init__(self, reporter: Reporter, initial_epoch: int, *, is_lost: bool) -> None:
        self._is_lost = is_lost  # what it trains, if an attempt ends
        self._reporter = reporter
        self._initial_epoch = initial_epoch
        # What comes after continues counting from here, so a train_steps that resumes finds its own steps.
        self._step = reporter.first_step
        self._step_in_epoch = 0
        self._pace = PaceReport()
        self._epoch: int | None = None  # epochs completed

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        is_first, self._epoch = self._epoch is None, epoch
        if not is_first:
            return
        self._reporter.num_plain_fits += 1
        strategy = self.model.distribute_strategy
        for sentence in layer_notes.notes_on(self.model, strategy):
            self._reporter.note(sentence)
        length = layer_notes.note_on_length(self.model, self.params, initial_epoch=self._initial_epoch)
        if length is not None and is_distributed(strategy):
            reporter.detail(length)
        if not self._note_separate_models(strategy) and self._is_lost:
            self._reporter.note(_LOST)
        self._check_equal(strategy)
        steps, epochs = self.params.get("steps"), self.params["epochs"]
        if steps and epoch > self._initial_epoch:
            # A callback of the user's, such as BackupAndRestore, continues from an earlier attempt.
            self._step += steps * (epoch - self._initial_epoch)
            self._reporter.first_step = self._step
            self._reporter.progress.restored(self._step)
        elif epoch == self._initial_epoch:
            number = self._reporter.num_plain_fits
            self._reporter.progress.training_begins("model.fit", number=number, step=self._step)
        num_steps = self._step + steps * (epochs - epoch) if steps else None
        self._reporter.progress.expect(num_steps=num_steps, num_epochs=epochs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if is_parameter_server(self.model.distribute_strategy):
            return  # tf_keras calls this when a step is scheduled, not when it is done
        self._count(batch + 1)
        self._pace.completed(
            self._reporter,
            logs,
            step=self._step,
            epoch=self._epoch,
            # What Keras iterates over by itself is not.
            is_measured=is_distributed(self.model.distribute_strategy),
            is_resumable=False,
        )

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._reporter.progress.beat()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if is_parameter_server(self.model.distribute_strategy):
            self._count(self.params.get("steps") or 0)
        self._step_in_epoch, self._epoch = 0, epoch + 1
        self._reporter.advance(self._step, epoch=self._epoch, is_resumable=False)
        self._reporter.report(floats(logs), step=self._step, epoch=self._epoch)

    def fit_ended(self) -> None:
        # No step is awaited any more.
        if self.model is None:  # Keras could not build it, or found a mistake in the arguments
            return
        if is_distributed(self.model.distribute_strategy):
            self._pace.finish(self._reporter)
        self._reporter.progress.expect(num_steps=self._step, num_epochs=self._epoch)

    def _check_equal(self, strategy: Any) -> None:
        if is_alone(strategy):
            return
        statistics = {id(one) for one in equal_workers.statistics_of(self.model)}
        found = [*_variables_of(self.model), *_variables_of(self.model.optimizer)]
        note = equal_workers.check(
            [one for one in found if id(one) not in statistics],
            functools.partial(gather_over_workers, strategy),
            when="before the first step of this fit",
        )
        if note is not None:
            self._reporter.note(note)

    def _note_separate_models(self, strategy: Any) -> bool:
        """Tells where each worker trains by itself, which may be meant, and gives no sign of it."""
        num_workers = self._reporter.num_programs
        if num_workers == 1 or not is_alone(strategy):
            return False
        self._reporter.note(
            f"model {self.model.name} was made outside of a strategy of all workers: each of {num_workers} "
            "workers trains one by itself; make it in the scope of the run's MultiWorkerMirroredStrategy"
        )
        return True

    def _count(self, step_in_epoch: int) -> None:
        self._step += step_in_epoch - self._step_in_epoch
        self._step_in_epoch = step_in_epoch
        self._reporter.first_step = self._step


def _variables_of(trackable: Any) -> list[tf.Variable]:
    """Returns the `tf.Variable`s of a model or optimizer; Keras 3 wraps them."""
    try:
        found = trackable.variables
    except ValueError:  # tf_keras: a part is a Sequential that the first step builds, with the chief's values
        return []
    found = found() if callable(found) else found
    return [one if isinstance(one, tf.Variable) else one.value for one in found if hasattr(one, "dtype")]
