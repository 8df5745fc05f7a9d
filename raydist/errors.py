"""What can go wrong, by who can mend it.

RaydistError
├── MistakeError           exit code 2: what was asked cannot be done as written
│   ├── SpecError          an option, a config key or a combination of them
│   ├── JobFileError       the job file: missing, no job in it, syntax
│   ├── DataError          the input data: missing, not as described, changed under way
│   └── UnsupportedError   TensorFlow or Keras cannot do what the train function asks
├── ClusterError           exit code 3: the cluster cannot give it, or could not be reached or started
│   └── StartTimeoutError  an attempt's tasks were not all training by the start deadline
├── StorageError           exit code 4: storage cannot be read or written
│   └── CheckpointError    a checkpoint is damaged, or does not fit the model
└── TrainingError          exit code 1: the run failed while training
    └── TaskFailedError    a task raised or died; names the first, lists the collateral
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ClusterError",
    "DataError",
    "JobFileError",
    "MistakeError",
    "RaydistError",
    "SpecError",
    "StartTimeoutError",
    "StorageError",
    "TaskFailedError",
    "TrainingError",
    "UnsupportedError",
]


class RaydistError(Exception):
    """Base of every error that raydist raises on purpose.

    The message is the only positional argument, so that the error survives pickling with its fields.

    Attributes:
      exit_code: What the command line ends with when this error ends a command.
      task: The task that it happened in, written `worker/0`; None outside a task.
      attempt: The attempt's number; None outside an attempt.
      log: URI of that task's log folder; None where there is none.
      result: The RunResult of the run that it ended; None when it was raised before a run was started.
    """

    exit_code = 1
    result: object | None = None

    def __init__(
        self,
        message: str,
        *,
        task: str | None = None,
        attempt: int | None = None,
        log: str | None = None,
    ) -> None:
        super().__init__(message)
        self.task = task
        self.attempt = attempt
        self.log = log


class MistakeError(RaydistError):
    """What was asked cannot be done as written; the message says what, where, the value and the remedy."""

    exit_code = 2


class SpecError(MistakeError):
    """An option, a config key, or a combination of them."""


class JobFileError(MistakeError):
    """The job file: missing, without a job, with a syntax error."""


class DataError(MistakeError):
    """The input data are missing, not as described, or changed under way; names file, group and column."""


class UnsupportedError(MistakeError):
    """The train function asks TensorFlow or Keras for something that cannot work under this strategy."""


class ClusterError(RaydistError):
    """The cluster cannot give what the plan needs, or could not be reached or started."""

    exit_code = 3


class StartTimeoutError(ClusterError):
    """An attempt's tasks were not all training by the start deadline; names the missing ones."""


class StorageError(RaydistError):
    """Storage cannot be read or written."""

    exit_code = 4


class CheckpointError(StorageError):
    """A checkpoint is damaged, or does not fit the model that it is restored into."""


class TrainingError(RaydistError):
    """The run failed while training."""


class TaskFailedError(TrainingError):
    """A task raised or died: names the first to fail and lists the others as collateral."""
