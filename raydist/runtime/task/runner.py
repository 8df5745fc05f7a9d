"""TaskRunner: what runs inside a task actor. raydist.task has the real one; tests bring their own."""

from __future__ import annotations

import logging
import pkgutil
import time
import traceback
from pathlib import Path
from typing import Protocol

from raydist.errors import RaydistError
from raydist.outcome.status import FailureKind, TaskFailure, TaskMessage, TaskStatus
from raydist.planning.assignment import TaskAssignment
from raydist.runtime.task.ports import PortLease
from raydist.spec.job import JobSpec, RunOn, Strategy
from raydist.spec.secrecy import Secrets
from raydist.spec.tasks import TaskId, TaskType

logger = logging.getLogger(__name__)

TRAINING_RUNNER = "raydist.task:TrainingRunner"
SERVER_RUNNER = "raydist.task:ServerRunner"
DATA_WORKER_RUNNER = "raydist.task:DataWorkerRunner"
_PRELOADS = {"raydist.task": "raydist.task:preload"}


def runner_of(task: TaskId, strategy: Strategy, job: JobSpec) -> str:
    """Returns the runner of a task: under ParameterServer workers and ps only serve what the chief asks.

    Unless every task is to run the script, which then starts TensorFlow's servers by itself.
    """
    if task.task_type is TaskType.DATA_WORKER:
        return DATA_WORKER_RUNNER
    is_server = strategy is Strategy.PARAMETER_SERVER and task.task_type in (TaskType.WORKER, TaskType.PS)
    runs_script = job.entry_point.is_script and job.run_on is RunOn.ALL
    return SERVER_RUNNER if is_server and not runs_script else TRAINING_RUNNER


class TaskRunner(Protocol):
    """One task's work. Everything but `status` and `handle` is called in the actor's main thread."""

    def __init__(self, task: TaskId, host: str) -> None: ...

    def warm_up(self) -> None:
        """Does what needs no assignment: imports TensorFlow while the other tasks still come up."""

    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: PortLease) -> TaskStatus:
        """Trains and returns the terminal status; user failures are in it, not raised.

        Args:
          code_dir: The unpacked working directory, already first on sys.path and the current
            folder; None when none travelled.
          lease: Holds the port of `assignment.address`; closed here once TensorFlow has the port.
        """

    def status(self) -> TaskStatus:
        """Returns where the task stands now; called by another thread about twice a second."""

    def handle(self, message: TaskMessage) -> None:
        """Takes a command other than STOP and DUMP_STACKS; called by another thread, returns at once."""


def preload_of(runner: str) -> str:
    """Returns what imports all that tasks of a runner need, `module:function`; nothing for those of tests."""
    return _PRELOADS.get(runner.partition(":")[0], "")


def describe_failure(
    task: TaskId, error: BaseException, *, kind: FailureKind, runner: str, secrets: Secrets
) -> TaskFailure:
    """Describes what no runner has described, and shows it in the task's log."""
    text = secrets.hide("".join(traceback.format_exception(error)))
    logger.error("%s: %s failed\n%s", task, runner, text)
    return TaskFailure(
        task=task,
        kind=kind,
        error_type=type(error).__name__,
        message=secrets.hide(f"{error}") or type(error).__name__,
        traceback=None if isinstance(error, RaydistError) else text,
        at_s=time.time(),
    )


def load_runner(entry_point: str) -> type[TaskRunner]:
    """Imports the class that `entry_point` (`package.module:Class`) names."""
    runner: type[TaskRunner] = pkgutil.resolve_name(entry_point)
    return runner
