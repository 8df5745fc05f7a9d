"""Where a run stands, what its tasks report to the controller, and what the controller asks of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.outcome.codec import NOT_KEPT
from raydist.outcome.printed import OutputSpan
from raydist.spec.best import Best
from raydist.spec.tasks import TaskId


class RunState(str, enum.Enum):
    """Where a run stands. Each member equals its name as text, which `--json` and run.json have.

    Example:
        while not handle.status().state.is_terminal:
            time.sleep(10)
    """

    STARTING = "STARTING"  # an attempt's tasks are not all training yet
    RUNNING = "RUNNING"  # every task trains, or has ended
    STOPPING = "STOPPING"  # the attempt is over: hearing why, then ending its processes
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # stopped by Ctrl-C or `raydist stop`

    __str__ = str.__str__  # as of an enum.StrEnum, which came with Python 3.11

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended, so that its state changes no more."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


# How notes about NaN and infinite values begin, by which whoever shows a run tells them from others.
NOT_FINITE = "not finite"
# Of a script that reports no step, and how long one may take to its first step before it is told so.
SHOW_PROGRESS = (
    "model.fit, raydist.context().report({...}, step=n) and raydist.context().train_steps(...) show progress"
)
_HINT_AFTER_S = 60.0


class TaskState(enum.Enum):
    """Where a task stands in one attempt."""

    PENDING = "PENDING"  # asked for, no process yet
    STARTING = "STARTING"  # process up: importing TensorFlow, building the strategy
    RUNNING = "RUNNING"  # inside the user's train function
    FINISHED = "FINISHED"  # the train function returned
    FAILED = "FAILED"  # the train function raised, or the process died
    STOPPED = "STOPPED"  # ended by raydist

    @property
    def is_terminal(self) -> bool:
        return self in (TaskState.FINISHED, TaskState.FAILED, TaskState.STOPPED)


BEFORE_SERVICE = (TaskState.PENDING, TaskState.STARTING)


class FailureKind(enum.Enum):
    """Why a task failed, which decides who pays for the next attempt."""

    USER = "USER"  # the train function raised
    MISTAKE = "MISTAKE"  # a MistakeError: asking again cannot help
    STORAGE = "STORAGE"  # a StorageError
    COLLATERAL = "COLLATERAL"  # raised because a peer failed
    LOST = "LOST"  # the process died without an error
    DEVICE = "DEVICE"  # a DeviceError: TensorFlow does not see the task's GPUs
    START = "START"  # it did not start in time
    STALLED = "STALLED"  # no task made progress for too long
    UNEQUAL = "UNEQUAL"  # the workers did not make the same calls
    SAVED = "SAVED"  # TensorFlow's PreemptionCheckpointHandler saved and ended the program: start it again

    @property
    def is_incurable(self) -> bool:
        """Whether another attempt would end the same way. The message is then a sentence of raydist's."""
        incurable = (FailureKind.MISTAKE, FailureKind.STORAGE, FailureKind.DEVICE, FailureKind.UNEQUAL)
        return self in incurable


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """Why one task failed.

    Attributes:
      error_type: Class name of the exception, or of what ended the process.
      message: One sentence or more; never a traceback.
      traceback: The Python traceback of the user's code, of a task that stands still where it is; None for
        mistakes and dead processes.
      log_end: The last lines of the log of a process that died without an error; None for any other.
      step: The step that the task had completed when it failed.
      at_s: Unix time, seconds.
      wants_retry: Whether the user's code asks for another attempt: False for a FinalError, True for a
        RetryableError and exit code 75, None for any other failure.
      is_out_of_memory: Whether the process was killed because memory ran out.
      peak_memory_bytes: The most memory that the process had, by its last status; None where that had none.
      is_host_in_doubt: Whether its host is gone, or may be; False where only the process died.
    """

    task: TaskId
    kind: FailureKind
    error_type: str = field(metadata={"key": "type"})
    message: str
    traceback: str | None = field(default=None, metadata=NOT_KEPT)
    log_end: str | None = field(default=None, metadata=NOT_KEPT)
    step: int = 0
    at_s: float = 0.0
    wants_retry: bool | None = None
    is_out_of_memory: bool = False
    peak_memory_bytes: int | None = None
    is_host_in_doubt: bool = field(default=False, metadata=NOT_KEPT)


@dataclass(frozen=True, kw_only=True)
class GroupLoss:
    """The tasks of an attempt could not be reached any more."""

    kind: None = None  # in run.json it tells this from a TaskFailure
    message: str


# What ended an attempt.
AttemptEnd = TaskFailure | GroupLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLink:
    """What Linux has measured on a task's TCP connections with the tasks of one other host.

    Attributes:
      host: The other host's IP address.
      round_trip_s: Shortest round trip of the last 5 minutes, seconds. The mean would be longer where a host
        confirms late what it received, as it may do by 40 ms.
      sent: Segments with data sent by the connections that are open now; `resent` is how many of them had
        to be sent again.
    """

    host: str
    round_trip_s: float
    sent: int
    resent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPace:
    """Sums since a task began, as of the end of one of its steps. All times are seconds.

    Attributes:
      at_s: On the monotonic clock of the task's host.
      steps: Steps completed by the run, those before a restore included.
      input_wait_s: Time that steps waited for data; None where it is not measured.
      collective_wait_s: Time between having a tensor ready for a collective and having its result, which
        holds the wait for slower tasks; None where it is not measured.
      cpu_s: CPU time of the task's process, of all its threads.
      run_delay_s: Time that its threads were ready to run while the CPUs ran something else, summed over the
        threads; None where Linux does not show it.
      other_cpu_s: CPU time of everything else on the host, time stolen by other virtual machines included;
        None where Linux does not show it.
      num_cpus: CPUs of the host.
      host: IP address of the host within TensorFlow's cluster; None where links are not measured.
      links: One to each other host that the task has connections with.
    """

    at_s: float
    steps: int
    input_wait_s: float | None = None
    collective_wait_s: float | None = None
    cpu_s: float = 0.0
    run_delay_s: float | None = None
    other_cpu_s: float | None = None
    num_cpus: int = 1
    host: str | None = None
    links: tuple[TaskLink, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """Where a task without progress is in its code.

    Attributes:
      where: `bad.py:53 (on_epoch_end)`; None where no code of the user's runs.
      is_waiting: Whether TensorFlow, Keras or raydist, which this code has called, wait there, as in a
        collective for other tasks.
      stack: The calls that lead there, without those of these libraries; empty without `where`.
    """

    where: str | None = None
    is_waiting: bool = False
    stack: str = ""


class CallState(enum.Enum):
    """Where a worker is among the calls that all workers make together, such as `model.fit`."""

    BETWEEN = "BETWEEN"  # in code of the user's that calls none of them
    MEETING = "MEETING"  # waits until all workers make the call
    INSIDE = "INSIDE"  # all have made it
    LEFT = "LEFT"  # the train function has returned


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """The newest call, step or exchange of values that a worker has begun and that needs all workers.

    Attributes:
      number: Of those that its process has begun, from 1: all workers begin the same ones in one order.
      call: While it waits for the others to make it, such as `model.fit`; None otherwise.
      is_running: Whether a step or an exchange has not ended yet.
      where: The user's line, such as `job.py:21 (train)`, once the worker has stood there for a second.
    """

    number: int = 0
    state: CallState = CallState.BETWEEN
    call: str | None = None
    is_running: bool = False
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """The beginning of one call that trains.

    Attributes:
      kind: `fit` and `train_steps` of the context, or `model.fit` for a plain one.
      number: Of the calls of its kind in the train function, from 1.
      step: Steps that the run had completed before it.
    """

    kind: str
    number: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Values of the whole run that a task reported.

    Attributes:
      number: Of the reports of its process, from 1.
      step: Steps that the run had completed.
      epoch: Epochs completed; None for values that belong to no end of an epoch.
    """

    number: int
    step: int
    epoch: int | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatus:
    """What a task tells of itself, about twice a second. With slots: a controller looks at thousands of them.

    Attributes:
      step: Steps completed by the run, those before a restore included.
      epoch: Epochs completed; None where the train function knows none.
      num_steps: Steps that the run will take, None while unknown.
      num_epochs: Epochs that the run will take, None while unknown.
      steps_per_s: Rate since the last push; None before the first step.
      restored_step: The step that this attempt was restored at; 0 without a checkpoint.
      first_step_at_s: Unix time at the end of the attempt's first call of steps; None before it.
      first_step: Steps that the run had completed then, with those of earlier attempts.
      metrics: The last report: name to value.
      reports: The newest reports, the oldest first: each epoch's, and of those between two epochs the last.
      best: The best value reported in this attempt; None before the first.
      local_metrics: Running values of this task alone, for the progress line.
      checkpoint: URI of the newest checkpoint that this task committed; None before the first.
      steps_repeated: Steps that were applied a second time because a worker died with them half done;
        ParameterServer only.
      lag_steps: Evaluator: how many steps the chief was ahead of the checkpoint evaluated last; None
        before the first.
      beats: Counts other signs of progress: batches evaluated, checkpoints saved.
      is_joining: Whether a script may be about to wait for its peers in TensorFlow, which keeps its process
        from saying so (MultiWorkerMirroredStrategy holds Python's lock in that time). In the chief of
        parameter servers: whether the script has built no strategy yet.
      pace: How fast it trains and what its steps wait for; None before the first step, and in a task that
        measures none.
      worker_paces: The chief of parameter servers: the pace of each worker, whose `at_s` counts the seconds
        that it was busy; empty before the first closure.
      peak_memory_bytes: The most memory that the process has had resident; None where Linux does not show it.
      memory_limit_bytes: The memory of its host, or of its container if that has less; None as above.
      saves_by_itself: Whether the program saves and ends when it is asked to save: it has a handler of
        preemptions.
      divides_data: Whether data workers divide the elements of a dataset among themselves that it gave to
        `ctx.distribute`, so that one takes some with it when it dies; None before the first call.
      leaving: Why the process has to end soon, such as `SIGTERM`; None as long as it may stay.
      place: Where it is in its code, once it was asked to dump its stacks and has not gone on since.
      collective: What it has begun together with all other workers; None where there are none.
      incarnation: 0 for the task's first process in this attempt, one more each time it was replaced.
      notes: Sentences about what was chosen on the user's behalf inside the task.
      trainings: Those that this process has begun at their first step, up to a limit.
      value: What the train function has returned, as `encode_value` returns it; of the chief alone.
      output: Where the log has what the script prints; None before it runs, and of a train function.
      at_s: Unix time of the push, seconds.
    """

    task: TaskId
    state: TaskState
    pid: int
    host: str
    address: str | None = None
    step: int = 0
    epoch: int | None = None
    num_steps: int | None = None
    num_epochs: int | None = None
    steps_per_s: float | None = None
    restored_step: int = 0
    first_step_at_s: float | None = None
    first_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()
    best: Best | None = None
    local_metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    steps_repeated: int = 0
    lag_steps: int | None = None
    beats: int = 0
    is_joining: bool = False
    pace: TaskPace | None = None
    worker_paces: tuple[TaskPace, ...] = ()
    peak_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    saves_by_itself: bool = False
    divides_data: bool | None = None
    leaving: str | None = None
    place: CodePlace | None = None
    collective: Collective | None = None
    incarnation: int = 0
    notes: tuple[str, ...] = ()
    trainings: tuple[Training, ...] = ()
    value: Any = None
    output: OutputSpan | None = None
    failure: TaskFailure | None = None
    at_s: float = 0.0


class Command(enum.Enum):
    """What may be asked of a running task: by the controller through its agent, or by a signal."""

    STOP = "STOP"  # end the process now
    DUMP_STACKS = "DUMP_STACKS"  # write every thread's stack to the task's log
    SAVE = "SAVE"  # commit a checkpoint at the next step boundary
    SAVE_LAST = "SAVE_LAST"  # the same, and train no further: the attempt is over
    PROFILE = "PROFILE"  # look on storage for a request to profile some steps
    # Evaluator: training is done; evaluate the last checkpoint and return. Chief: the evaluator was given up.
    FINISH = "FINISH"


@dataclass(frozen=True, kw_only=True)
class WorkerAddresses:
    """Tells the chief of parameter servers where its workers are now.

    Attributes:
      number: Counts the messages, as an agent may take two at once.
      addresses: `host:port` by the worker's index.
    """

    number: int
    addresses: Mapping[int, str]


# What a running task may be sent.
TaskMessage = Command | WorkerAddresses


def steps_hint(*, is_script: bool, step: int, running_s: float | None) -> str | None:
    """Returns which calls show progress, for a script that runs without a step for long; None for others.

    Args:
      running_s: How long the tasks have been running; None before they do.
    """
    if not is_script or step > 0 or running_s is None or running_s < _HINT_AFTER_S:
        return None
    return f"no step reported; {SHOW_PROGRESS}"


class Scope(enum.Enum):
    """Whose value it is."""

    GLOBAL = "global"  # of all replicas together; the chief writes it, once an epoch or report
    LOCAL = "local"  # one task's running value, at most twice a second


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One value.

    Attributes:
      step: Steps that the run had completed, those before a restore included.
      epoch: Epochs completed; None where the train function knows none.
      wall_time: Unix time, seconds.
      value: A number; NaN and infinities are kept.
    """

    run: str
    attempt: int
    task: TaskId
    step: int
    epoch: int | None
    wall_time: float
    scope: Scope
    name: str
    value: float
