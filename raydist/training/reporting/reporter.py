"""Reporter: how far this task is, and what it has found, for the controller and for the run's metrics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from raydist.errors import NonFiniteError, StorageError
from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import NOT_FINITE, MetricRow, Scope
from raydist.planning.assignment import TaskAssignment
from raydist.spec.best import is_of_validation, parse_keep_best
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskType
from raydist.spec.text import DETAIL, suggest
from raydist.training.reporting.host_usage import TaskLinks
from raydist.training.reporting.profiler import Profiler
from raydist.training.reporting.progress import TaskProgress, say
from raydist.training.reporting.tensorboard import TensorBoardWriter

logger = logging.getLogger(__name__)

# What waits to be stored, in a state that is kept in memory.
_METRICS, _BOARD = "metrics", "board"
TICK_INTERVAL_S = 1.0
# A loop without steps that take time fills no memory.
_MAX_HANDED_IN = 4096


class Reporter:
    """The one place where training reports its steps and values.

    Attributes:
      progress: What the controller sees of this task.
      is_chief: Whether this task writes for all.
      step: Steps completed by the run, as far as this task knows.
      first_step: Where the next training of the train function begins to count. Behind `step` in a resumed
        run, which goes through trainings that are done.
      is_of_script: Whether the task runs a script, which restores by itself.
      num_plain_fits: Calls of `model.fit` so far that are reported.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        *,
        progress: TaskProgress,
        metrics: MetricsWriter,
        board: TensorBoardWriter | None = None,
        profiler: Profiler | None = None,
    ) -> None:
        """Takes where values go; `board` is None in a task that writes no event files.

        Args:
          profiler: Called at each step's end; None for no profiles.
        """
        self.task = assignment.task
        self.is_chief = assignment.is_chief
        self.progress = progress
        self.step = 0
        self.first_step = 0
        self.is_of_script = assignment.job.entry_point.is_script
        self.num_plain_fits = 0
        # Under parameter_server the chief alone runs the program.
        self.num_programs = 1 if assignment.strategy is Strategy.PARAMETER_SERVER else assignment.num_workers
        self.links = TaskLinks(assignment.address, assignment.cluster_spec)
        self._run_name = assignment.job.name
        self._attempt = assignment.attempt
        self._keep_best = self._keep_best_to_check = assignment.job.keep_best
        self._stops_on_nan = assignment.job.stop_on_nan
        self._non_finite: set[str] = set()
        self._metrics = metrics
        self._board = board
        self._profiler = profiler
        self._handed_in: deque[tuple[Mapping[str, float], int, float]] = deque()
        self._has_recorded = False
        self._lock = threading.RLock()
        progress.settle_first(self.settle)
        # Values that hold for the whole run are written once. An evaluator's are its own.
        self._writes_global = self.is_chief or self.task.task_type is TaskType.EVALUATOR

    def advance(
        self,
        step: int,
        *,
        epoch: int | None = None,
        values: Mapping[str, float] | None = None,
        is_resumable: bool = True,
    ) -> None:
        """Reports that `step` steps and `epoch` epochs are completed.

        Args:
          values: This task's own values as of now, for its status.
          is_resumable: False for steps that no checkpoint holds, and that a new attempt would repeat.

        Raises:
          NonFiniteError: One of `values` is NaN or infinite, with --stop-on-nan.
        """
        self.step = max(self.step, step)
        self.settle()
        self.progress.completed(step, epoch=epoch, local_metrics=values, is_resumable=is_resumable)
        if self._profiler is not None:
            self._profiler.stepped(step)
        self._check_finite(values or {}, step=step)

    def hand_in(self, values: Mapping[str, float], *, step: int) -> None:
        """Takes what the train function reports of its step, for the first thread that needs it to record.

        Recording takes 0.1 ms right after a step, whose data fill the caches, and a quarter of it in a row
        (tests/benchmarks/costs.py). So the threads that write and send it do it.

        Raises:
          NonFiniteError: One of `values` is NaN or infinite, with --stop-on-nan.
        """
        self.step = max(self.step, step)
        self._handed_in.append((values, step, time.time()))
        if not self._has_recorded or len(self._handed_in) >= _MAX_HANDED_IN:
            self.settle()
        if self._profiler is not None:
            self._profiler.stepped(step)
        self._check_finite(values, step=step)

    def settle(self) -> None:
        """Records what was handed in."""
        with self._lock:
            while self._handed_in:
                values, step, at_s = self._handed_in.popleft()
                self.progress.completed(step)
                if not self.is_chief:
                    self.progress.reported(values, step=step)
                scope = Scope.GLOBAL if self.is_chief else Scope.LOCAL
                self._record(values, step=step, epoch=None, scope=scope, at_s=at_s)

    def report(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        epoch: int | None = None,
        scope: Scope = Scope.GLOBAL,
    ) -> None:
        """Records values that hold after `step` steps, of this task or, called in every task, of the run.

        Raises:
          NonFiniteError: One of `values` is NaN or infinite, with --stop-on-nan.
        """
        self.step = max(self.step, step)
        with self._lock:
            self.settle()
            self._record(values, step=step, epoch=epoch, scope=scope, at_s=time.time())
        self._check_finite(values, step=step)

    def _check_finite(self, values: Mapping[str, float], *, step: int) -> None:
        """Tells of values that are not finite, of each name once."""
        found = {name: value for name, value in values.items() if not math.isfinite(value)}
        if not found or (found.keys() <= self._non_finite and not self._stops_on_nan):
            return
        self._non_finite |= found.keys()
        told = ", ".join(f"{name} is {value}" for name, value in found.items())
        sentence = f"{NOT_FINITE} after step {step}: {told}"
        if self._stops_on_nan:
            self.settle()
            raise NonFiniteError(
                f"{sentence}; --stop-on-nan ends the run. A lower learning rate or clipnorm may help"
            )
        self.note(f"{sentence}. A lower learning rate or clipnorm may help; --stop-on-nan ends such a run")

    def _check_keep_best(self, values: Mapping[str, float]) -> None:
        """Notes that no epoch has the metric of --keep-best, unless a validation may bring it."""
        keep_best, self._keep_best_to_check = self._keep_best_to_check, None
        if keep_best is None:
            return
        name, _ = parse_keep_best(keep_best)
        if is_of_validation(keep_best) and not any(map(is_of_validation, values)):
            self._keep_best_to_check = keep_best
        elif name not in values:
            self.note(
                f"--keep-best {keep_best} keeps no checkpoint so far, as the epochs do not report it; "
                f"{suggest(name, values)}"
            )

    def _record(
        self, values: Mapping[str, float], *, step: int, epoch: int | None, scope: Scope, at_s: float
    ) -> None:
        self._has_recorded = True
        if scope is Scope.GLOBAL:
            self.progress.reported(values, step=step, epoch=epoch, keep_best=self._keep_best)
            if not self._writes_global:
                return
            if epoch is not None:
                self._check_keep_best(values)
        self._metrics.append(
            MetricRow(
                run=self._run_name,
                attempt=self._attempt,
                task=self.task,
                step=step,
                epoch=epoch,
                wall_time=at_s,
                scope=scope,
                name=name,
                value=value,
            )
            for name, value in values.items()
        )
        if self._board is not None:
            self._board.append(
                values,
                step=step,
                of_epoch=epoch is not None,
                is_running=scope is Scope.LOCAL,
                restored_step=self.progress.restored_step,
                wall_time=at_s,
            )

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Uploads values in a thread, so that training does not wait for storage, and the rest at the end."""
        is_done = threading.Event()

        def tick() -> None:
            while not is_done.wait(TICK_INTERVAL_S):
                self.progress.settle()
                try:
                    self._metrics.tick()
                except StorageError as error:
                    # The writer keeps what it could not store; the flush at the end is the last try.
                    logger.warning("metrics are not stored yet: %s", error)
                if self._board is not None:
                    self._board.tick()
                if self._profiler is not None:
                    self._profiler.tick()

        thread = threading.Thread(target=tick, name="raydist-metrics", daemon=True)
        thread.start()
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            is_done.set()
            thread.join()
            if self._profiler is not None:
                self._profiler.close(has_failed=has_failed)
            try:
                self.flush(is_hasty=has_failed)
            except StorageError as error:
                if not has_failed:
                    raise
                # The exception that ends the session is the one to tell.
                logger.warning("the last metrics are lost: %s", error)

    def flush(self, *, is_hasty: bool = False) -> None:
        """Stores what waits."""
        self.progress.settle()
        if self._board is not None:
            self._board.flush()
        self._metrics.flush(is_hasty=is_hasty)

    def waiting(self) -> dict[str, bytes]:
        """Returns what waits to be stored, for `take_over` of another process."""
        self.progress.settle()
        found = {} if self._board is None else {_BOARD: self._board.waiting()}
        return {**found, _METRICS: self._metrics.waiting()}

    def take_over(self, waiting: Mapping[str, bytes]) -> None:
        """Takes what waited in a process that has died."""
        self._metrics.take_over(waiting[_METRICS])
        if self._board is not None:
            self._board.take_over(waiting[_BOARD])

    def note(self, sentence: str) -> None:
        """Shows the user what was chosen on their behalf, in the task's log and once in the run's notes."""
        say(sentence)
        self.progress.note(sentence)


class _CurrentReporter:
    """The reporter of the session that is open in this process, for code that Keras calls."""

    reporter: Reporter | None = None
    held: list[str | None] | None = None  # what `noting_on_success` holds


def current() -> Reporter | None:
    """Returns the reporter of the open session; None outside of one."""
    return _CurrentReporter.reporter


def set_current(reporter: Reporter | None) -> None:
    """Makes it the current one; None at the session's end."""
    _CurrentReporter.reporter = reporter


@contextmanager
def noting_on_success() -> Iterator[None]:
    """Has `note` wait for the end of the block; if that raises, its own error is all there is to say."""
    before, held = _CurrentReporter.held, list[str | None]()
    _CurrentReporter.held = held
    try:
        yield
    finally:
        _CurrentReporter.held = before
    for sentence in held:
        note(sentence)


def note(sentence: str | None) -> None:
    """Adds a sentence to the run's notes, once; does nothing without one, and outside of a session."""
    reporter, held = _CurrentReporter.reporter, _CurrentReporter.held
    if held is not None:
        held.append(sentence)
        return
    if reporter is not None and sentence is not None and sentence not in reporter.progress.status().notes:
        reporter.note(sentence)


def detail(sentence: str) -> None:
    """Keeps for `status --all` what is meant to be so, and asks nothing of the user; once."""
    note(f"{DETAIL}{sentence}")
