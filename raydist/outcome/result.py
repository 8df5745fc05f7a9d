"""RunResult: how a run ended, or where it stands; one shape for `submit --json`, `status` and run.json."""

from __future__ import annotations

import dataclasses
import enum
import os
import shlex
import traceback as tracebacks
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from raydist import errors
from raydist.outcome.codec import NOT_KEPT, as_plain, nan_where_null
from raydist.outcome.status import RunState, TaskState
from raydist.outcome.value import check_value, decode_value
from raydist.spec.best import Best
from raydist.spec.job import JobSpec
from raydist.spec.tasks import TaskId
from raydist.spec.text import DETAIL, facts_html, metrics_text

Metrics: TypeAlias = Mapping[str, Annotated[float, nan_where_null]]
ErrorClass: TypeAlias = type[errors.RaydistError]

_BASES: dict[int, ErrorClass] = {2: errors.MistakeError, 3: errors.ClusterError, 4: errors.StorageError}
# Above what kill(2) takes; 0 and less stand for groups of processes, which no run may stop.
MAX_PID = 2**31


def _check_pid(pid: int) -> None:
    if not 0 < pid < MAX_PID:
        raise ValueError("no process has that number")


def _check_exit_code(code: int) -> None:
    if code not in (1, 2, 3, 4, errors.RunTimeoutError.exit_code, errors.RunCancelledError.exit_code):
        raise ValueError("raydist ends with no such exit code")


Pid: TypeAlias = Annotated[int, _check_pid]


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """One task of the last attempt. `pid`, `host` and `address` are None while it has none.

    Attributes:
      steps_per_s: The newest rate; None before the second step, and for a task that counts no steps.
      lag_steps: Steps behind the task that is ahead, for an evaluator behind the chief; None for
        a task that counts no steps.
      step_s: Seconds that a step takes of late; None for a task that measures none.
      input_wait: Share of that time spent waiting for data, 0 to 1; None where it is not measured.
      collective_wait: Share of that time spent waiting in collectives, for the other tasks and the network;
        None where it is not measured.
      peak_memory_bytes: The most memory that its process has had; None where that is not known.
      incarnation: How often the task was replaced in the attempt.
    """

    task: TaskId
    state: TaskState
    steps: int = 0
    steps_per_s: float | None = None
    lag_steps: int | None = None
    step_s: float | None = None
    input_wait: float | None = None
    collective_wait: float | None = None
    peak_memory_bytes: int | None = None
    incarnation: int = 0
    host: str | None = None
    pid: Pid | None = None
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What the evaluator found last.

    Attributes:
      step: The step of the checkpoint.
      lag_steps: How far the chief was ahead of it by then; None where that is unknown.
    """

    step: int
    lag_steps: int | None
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far the chief is in the work of its attempt.

    Attributes:
      epoch: Epochs completed; None where the train function knows none.
      num_epochs: Epochs that the run will take; None while unknown.
      num_steps: Steps that the run will take; None while unknown.
      steps_per_s: The newest rate; None before the second step.
      eta_s: Seconds until `num_steps` at the attempt's mean rate; None while that is unknown.
    """

    epoch: int | None = None
    num_epochs: int | None = None
    num_steps: int | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None


class StragglerCause(enum.Enum):
    """Why a task is slower than the others."""

    DATA = "data"  # it waits for its input
    COMPUTE = "compute"  # its steps take more CPU time
    HOST = "another process on its host"  # it is ready to run, and something else has the CPU
    NETWORK = "network"  # all tasks wait in collectives, and its host's links are slower than the others'
    UNKNOWN = "unknown"  # none of these explains it


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A task that was slower than the others for a while.

    Attributes:
      times_slower: Its own time per step over the median of the tasks; about 1 where the network is slow.
      message: A sentence with the figures, as the run's notes have it.
      is_over: Whether it is as fast as the others again.
    """

    task: TaskId
    cause: StragglerCause
    times_slower: float
    message: str
    is_over: bool = False


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """How one task of the last attempt failed.

    Attributes:
      type: Class name of its exception, or of what ended its process.
    """

    task: TaskId
    type: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RunError:
    """Why a run failed.

    Attributes:
      type: Class name of the user's exception, of what ended a process, or of raydist's error. A user may
        name a class as raydist does, so it decides nothing where a task failed in training.
      task: The task that failed first; None where none did.
      attempt: The attempt in which it failed, from 0; None where no task failed.
      log: URI of that task's log folder.
      exit_code: What the command line ends with; found by `type` when it is omitted.
      traceback: The user's Python traceback, to be printed once; None where there is none.
      log_end: The last lines of a dead process's log; None where there is none.
      failures: How each task failed by itself, the first cause first.
    """

    type: str
    message: str
    task: TaskId | None = None
    attempt: int | None = None
    log: str | None = None
    exit_code: Annotated[int, _check_exit_code] = 0
    traceback: str | None = field(default=None, metadata=NOT_KEPT)
    log_end: str | None = field(default=None, metadata=NOT_KEPT)
    failures: tuple[RankFailure, ...] = ()

    def __post_init__(self) -> None:
        if not self.exit_code:
            object.__setattr__(self, "exit_code", self.raised_as.exit_code)

    @classmethod
    def from_exception(cls, error: BaseException, *, attempt: int | None, suffix: str = "") -> RunError:
        own = error if isinstance(error, errors.RaydistError) else None
        return cls(
            type=type(error).__name__,
            message=(str(error) or type(error).__name__) + suffix,
            attempt=attempt,
            exit_code=errors.TaskFailedError.exit_code if own is None else own.exit_code,
            traceback=None if own else "".join(tracebacks.format_exception(error)),
        )

    @property
    def raised_as(self) -> ErrorClass:
        """The class that `raydist.run` raises."""
        if self.exit_code in _BASES:
            return error_class(self.type, _BASES[self.exit_code])
        if self.exit_code and self.task is not None:
            return errors.TaskFailedError
        return error_class(self.type, errors.RaydistError, default=errors.TaskFailedError)

    def with_log(self, task_logs: Callable[[TaskId, int], str]) -> RunError:
        """Returns the error with the place of the task's logs, where a task failed."""
        if self.task is None or self.attempt is None:
            return self
        return dataclasses.replace(self, log=task_logs(self.task, self.attempt))

    def as_dict(self) -> dict[str, Any]:
        """Returns the error of plain values, without its traceback."""
        found: dict[str, Any] = as_plain(self)
        return found

    def as_exception(self) -> errors.RaydistError:
        """Returns the error of raydist that says the same; TaskFailedError for the user's exceptions."""
        task = None if self.task is None else str(self.task)
        error = self.raised_as(self.message, task=task, attempt=self.attempt, log=self.log)
        if self.log_end:
            errors.add_note(error, f"The end of its log:\n{self.log_end}")
        for one in self.failures[1:]:
            what = one.message.partition("\n")[0]
            errors.add_note(error, f"{one.task} failed too: {one.type}: {what}")
        return error


def command_for(run_uri: str, command: str) -> str:
    """Returns `raydist stop first --storage runs` for a run's folder; the default storage is left out."""
    root, _, run = run_uri.rstrip("/").rpartition("/")
    try:
        is_default = root == os.path.abspath(JobSpec.storage)
    except FileNotFoundError:  # the working folder is gone, as that of a stopped Ray's process may be
        is_default = False
    return f"raydist {command} {run}" + ("" if is_default else f" --storage {shlex.quote(root)}")


def error_class(name: str, base: ErrorClass, *, default: ErrorClass | None = None) -> ErrorClass:
    """Returns raydist's error of that name if it is a `base`; else `default`, or `base` without one."""
    found = getattr(errors, name) if name in errors.__all__ else None
    return found if found is not None and issubclass(found, base) else default or base


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended; of a live run, its progress so far.

    Example:
        result = raydist.run("jobs/cifar.py", check=False)
        if result.state is raydist.RunState.FAILED:
            print(result.error.message, result.traceback)

    Attributes:
      run: The run's name.
      strategy: The strategy's name, a value of the option.
      keras: The Keras that runs, `3` or `legacy`.
      attempts: How many attempts were begun, those before a resume included.
      steps: The highest step completed.
      steps_repeated: Steps that were applied twice because a worker died; ParameterServer only.
      metrics: The chief's last report.
      kept_value: `value`, as JSON's types; `value` in a dict.
      best: The best value of the metric of --keep-best; without that option of `val_loss`, `loss` or the
        first metric. Of a `val_` metric that of the evaluator, where there is one. None before the first
        report.
      evaluation: What the evaluator found last; None without one.
      progress: How far the chief is in its attempt; None before its first report.
      checkpoint: URI of the newest checkpoint; None without one.
      storage: URI of the run's folder.
      tasks: The tasks of the last attempt.
      stragglers: Those of them that were slower than the others for a while.
      error: Why the run failed; None unless it did.
      notes: Sentences that say what was chosen on the user's behalf, and which tasks and attempts were lost.
      timings: Seconds from the call to the end of each phase; None for one not reached.
    """

    run: str
    state: RunState
    strategy: str = ""
    keras: str = ""
    attempts: int = 0
    steps: int = 0
    steps_repeated: int = 0
    metrics: Metrics = field(default_factory=dict)
    kept_value: Annotated[Any, check_value] = field(default=None, metadata={"key": "value"})
    best: Best | None = None
    evaluation: Evaluation | None = None
    progress: RunProgress | None = None
    checkpoint: str | None = None
    storage: str
    tasks: tuple[TaskRecord, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    error: RunError | None = None
    notes: tuple[str, ...] = ()
    timings: Mapping[str, float | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={self.error.type!r}"
        return (
            f"RunResult(run={self.run!r}, state={self.state.name}, steps={self.steps}, "
            f"metrics={dict(self.metrics)}{error})"
        )

    def _repr_html_(self) -> str:
        return facts_html(
            f"{self.run}: {self.state.value}",
            [
                ("error", None if self.error is None else f"{self.error.type}: {self.error.message}"),
                ("strategy", self.strategy),
                ("steps", self.steps),
                ("metrics", metrics_text(self.metrics)),
                ("attempts", self.attempts),
                ("checkpoint", self.checkpoint),
                ("storage", self.storage),
                ("page", command_for(self.storage, "ui")),
                *(("note", note) for note in self.notes if not note.startswith(DETAIL)),
            ],
        )

    @property
    def value(self) -> Any:
        """What the train function returned in the chief, of plain data and NumPy arrays.

        None unless the run succeeded, and where the value could not be kept, which a note says.
        """
        return decode_value(self.kept_value)

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, 1, 2, 3, 4, 124 or 130."""
        if self.state is RunState.CANCELLED:
            return errors.RunCancelledError.exit_code
        return 0 if self.error is None else self.error.exit_code

    @property
    def traceback(self) -> str | None:
        """The user's Python traceback; in no dict and no message, so that it is shown once."""
        return None if self.error is None else self.error.traceback

    def raise_for_state(self) -> None:
        """Raises the error of a run that failed, RunCancelledError for one that was stopped."""
        if self.error is not None:
            raise self.error.as_exception()
        if self.state is RunState.CANCELLED:
            raise errors.RunCancelledError(f"run {self.run} was cancelled at step {self.steps}")

    def as_dict(self) -> dict[str, Any]:
        """Returns what `submit --json` prints, of plain values."""
        found: dict[str, Any] = as_plain(self)
        return found
