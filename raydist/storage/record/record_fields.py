"""What run.json holds, key by key; `read_record` lets nothing else through."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from raydist.spec.status import FailureKind, TaskState
from raydist.spec.tasks import TaskId

_MAX_TIME_S = 2.5e11  # in the year 9892: what Python's calendar can show in any time zone
_MAX_PID = 2**31


def _check_time(unix_s: float) -> None:
    if not 0 <= unix_s <= _MAX_TIME_S:
        raise ValueError("write a Unix time in seconds")


def _check_pid(pid: int) -> None:
    # 0 and less stand for groups of processes, which no run may stop.
    if not 0 < pid < _MAX_PID:
        raise ValueError("no process has that number")


Task = Annotated[str, TaskId.parse]
Time = Annotated[float, _check_time]
Pid = Annotated[int, _check_pid]
Metrics = dict[str, float | None]  # JSON has null for NaN


class TaskEntry(TypedDict):
    """A task of the last attempt."""

    task: Task
    state: Annotated[str, TaskState]
    steps: int
    host: str | None
    pid: Pid | None
    address: str | None


class EvaluationEntry(TypedDict):
    """What the evaluator found last."""

    step: int
    lag_steps: int | None
    metrics: Metrics


class ErrorEntry(TypedDict):
    """Why the run failed."""

    type: str
    message: str
    task: Task | None
    attempt: int | None
    log: str | None
    exit_code: NotRequired[Literal[1, 2, 3, 4, 130]]


class TaskFailureEntry(TypedDict):
    """A failure of a task that ended an attempt."""

    kind: Annotated[str, FailureKind]
    message: str
    task: Task
    type: str
    step: int
    at_s: float


class OtherFailureEntry(TypedDict):
    """What else ended an attempt."""

    kind: None
    message: str


class DriverEntry(TypedDict):
    """Which process drives the run; the last three for a detached one."""

    host: str
    pid: Pid
    start: int | None
    actor: NotRequired[str]
    address: NotRequired[str]
    id: NotRequired[str]


class EntryPointEntry(TypedDict):
    """What to run."""

    file: str | None
    module: str | None
    function: str | None


class SpecEntry(TypedDict, total=False):
    """What the run was started with; the other options are checked when a resume takes them over."""

    entry_point: EntryPointEntry
    params: dict[str, Any]
    working_dir: str | None
    address: str | None


class RunRecord(TypedDict):
    """The whole run.json. A writer may add keys."""

    run: str
    state: Literal["STARTING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"]
    strategy: str | None
    keras: str | None
    attempts: int
    steps: int
    steps_repeated: int
    metrics: Metrics
    evaluation: EvaluationEntry | None
    checkpoint: str | None
    storage: str
    tasks: list[TaskEntry]
    error: ErrorEntry | None
    notes: list[str]
    timings: Metrics
    failures: list[TaskFailureEntry | OtherFailureEntry]
    spec: SpecEntry
    plan: dict[str, Any]
    created_at_s: Time | None
    updated_at_s: Time | None
    driver: NotRequired[DriverEntry]
    datasets: NotRequired[list[str]]
    claim: NotRequired[int | None]
