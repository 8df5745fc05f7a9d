"""RunResult: how a run ended, or where it stands; one shape for `submit --json`, `status` and run.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.controller.attempt.attempt import Attempt
from raydist.controller.attempt.reached import Evaluation
from raydist.controller.failures.run_error import RunError
from raydist.controller.machine import RunMachine
from raydist.errors import TrainingError
from raydist.spec.run_state import RunState
from raydist.spec.status import TaskState
from raydist.spec.tasks import TaskId

CANCELLED_EXIT_CODE = 130

# The phases of a run, each with the seconds from the call of `raydist.run` to its end.
TIMING_NAMES = ("ray", "placement", "tasks_ready", "first_step", "total")


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """One task of the last attempt. `pid`, `host` and `address` are None while it has none."""

    task: TaskId
    state: TaskState = TaskState.PENDING
    steps: int = 0
    host: str | None = None
    pid: int | None = None
    address: str | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        return {
            "task": str(self.task),
            "state": self.state.value,
            "steps": self.steps,
            "host": self.host,
            "pid": self.pid,
            "address": self.address,
        }


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended; while it goes on, where it stands.

    Example:
        result = raydist.run("jobs/cifar.py", check=False)
        if result.state is raydist.RunState.FAILED:
            print(result.error.message, result.traceback)

    Attributes:
      run: The run's name.
      strategy: The strategy's name as the option has it. `keras` likewise.
      attempts: How many attempts were begun, those before a resume included.
      steps: The highest step completed.
      steps_repeated: Steps that were applied twice because a worker died; ParameterServer only.
      metrics: The chief's last report.
      evaluation: What the evaluator found last; None without one.
      checkpoint: URI of the newest checkpoint; None without one.
      storage: URI of the run's folder.
      tasks: The tasks of the last attempt.
      error: Why the run failed; None unless it did.
      notes: Sentences that say what was chosen on the user's behalf, and which tasks and attempts were lost.
      timings: Seconds from the call to the end of each phase; None for one not reached.
    """

    run: str
    state: RunState
    strategy: str
    keras: str
    attempts: int
    steps: int
    storage: str
    steps_repeated: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    checkpoint: str | None = None
    tasks: tuple[TaskRecord, ...] = ()
    error: RunError | None = None
    notes: tuple[str, ...] = ()
    timings: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, 1, 2, 3, 4 or 130."""
        if self.state is RunState.CANCELLED:
            return CANCELLED_EXIT_CODE
        return 0 if self.error is None else self.error.exit_code

    @property
    def traceback(self) -> str | None:
        """The user's Python traceback; in no dict and no message, so that it is shown once."""
        return None if self.error is None else self.error.traceback

    def raise_for_state(self) -> None:
        """Raises the error of a run that failed, TrainingError for one that was cancelled."""
        if self.error is not None:
            raise self.error.as_exception()
        if self.state is RunState.CANCELLED:
            raise TrainingError(f"run {self.run} was cancelled at step {self.steps}")

    def as_dict(self) -> dict[str, Any]:
        """Returns what `submit --json` prints, of plain values."""
        return {
            "run": self.run,
            "state": self.state.value,
            "strategy": self.strategy,
            "keras": self.keras,
            "attempts": self.attempts,
            "steps": self.steps,
            "steps_repeated": self.steps_repeated,
            "metrics": dict(self.metrics),
            "evaluation": None if self.evaluation is None else self.evaluation.as_dict(),
            "checkpoint": self.checkpoint,
            "storage": self.storage,
            "tasks": [task.as_dict() for task in self.tasks],
            "error": None if self.error is None else self.error.as_dict(),
            "notes": list(self.notes),
            "timings": dict(self.timings),
        }


@dataclass(frozen=True, kw_only=True)
class RunPlaces:
    """Where a run is kept, as URIs.

    Attributes:
      storage: The run's folder.
      task_logs: Returns the folder of a task's logs in an attempt.
    """

    storage: str
    task_logs: Callable[[TaskId, int], str]


def result_of(machine: RunMachine, *, places: RunPlaces, timings: Mapping[str, float | None]) -> RunResult:
    """Returns where the run stands; its result, once the state is terminal."""
    plan, attempt, reached = machine.plan, machine.attempt, machine.reached
    return RunResult(
        run=plan.job.name,
        state=machine.state,
        strategy=plan.strategy.value,
        keras=plan.keras.value,
        attempts=attempt.number + 1,
        steps=reached.steps,
        steps_repeated=reached.steps_repeated,
        metrics=reached.metrics,
        evaluation=reached.evaluation,
        checkpoint=reached.checkpoint,
        storage=places.storage,
        tasks=tuple(_task_record(task, attempt) for task in attempt.tasks),
        error=machine.error and machine.error.with_log(places.task_logs),
        notes=_notes(machine),
        timings={name: timings.get(name) for name in TIMING_NAMES},
    )


def _notes(machine: RunMachine) -> tuple[str, ...]:
    restarts = [restart.sentence() for restart in machine.restarts]
    incidents = [*machine.deaths.sentences(), *restarts, *machine.notes]
    return tuple(dict.fromkeys([*machine.plan.notes, *machine.reached.notes, *incidents]))


def _task_record(task: TaskId, attempt: Attempt) -> TaskRecord:
    status = attempt.statuses.get(task)
    if status is None or not status.pid:
        return TaskRecord(task=task, state=attempt.state_of(task))
    return TaskRecord(
        task=task,
        state=status.state,
        steps=status.step,
        host=status.host,
        pid=status.pid,
        address=status.address,
    )
