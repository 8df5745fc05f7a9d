"""What can go wrong, by who can fix it.

RaydistError
├── MistakeError           exit code 2: what was asked cannot be done as written
│   ├── SpecError          an option, a config key or a combination of them
│   ├── JobFileError       the job file: missing, no job in it, syntax
│   ├── DataError          the input data: missing, not as described, changed under way
│   └── UnsupportedError   TensorFlow or Keras cannot do what the train function asks
├── ClusterError           exit code 3: the cluster cannot give it, or could not be reached or started
│   ├── DeviceError        TensorFlow does not see the GPUs that Ray assigned to a task
│   └── StartTimeoutError  an attempt's tasks were not all training by the start deadline
├── StorageError           exit code 4: storage cannot be read or written
│   └── CheckpointError    a checkpoint is damaged, or does not fit the model
└── TrainingError          exit code 1: the run failed while training
    ├── TaskFailedError    a task raised or died; names the first, lists the collateral
    ├── NonFiniteError     a reported value became NaN or infinite, with stop_on_nan; no other attempt follows
    ├── RunTimeoutError    exit code 124: the run did not end within its time limit
    ├── RunCancelledError  exit code 130: the run was stopped
    ├── FinalError         raised by your code: no other attempt follows
    └── RetryableError     raised by your code: another attempt follows, within max_failures
"""

from __future__ import annotations

import os
import traceback
from typing import Any

__all__ = [
    "CheckpointError",
    "ClusterError",
    "DataError",
    "DeviceError",
    "FinalError",
    "JobFileError",
    "MistakeError",
    "NonFiniteError",
    "RaydistError",
    "RetryableError",
    "RunCancelledError",
    "RunTimeoutError",
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

    Example:
        try:
            raydist.run("jobs/cifar.py", workers=2)
        except raydist.RaydistError as error:
            print(error.exit_code, error.task, error.log)

    Attributes:
      exit_code: What the command line ends with when this error ends a command.
      task: The task that it happened in, written `worker/0`; None outside a task.
      attempt: The attempt's number; None outside an attempt.
      log: URI of that task's log folder; None where there is none.
      result: The RunResult of the run that it ended; None when it was raised before a run was started.
    """

    exit_code = 1
    # Any, because the errors may import nothing that has a RunResult.
    result: Any = None

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

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows: the traceback of the task and that of the cell, without libraries."""
        others = (f"{os.path.dirname(__file__)}{os.sep}", f"{os.sep}site-packages{os.sep}")
        frames = [
            one
            for one in traceback.extract_tb(self.__traceback__)
            if not any(place in one.filename for place in others)
        ]
        of_task = None if self.result is None else self.result.traceback
        shown = [f"In {self.task}: {of_task}"] if of_task else []
        if frames:
            shown += ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
        return "".join([*shown, *traceback.format_exception_only(self)]).splitlines()


class MistakeError(RaydistError):
    """What was asked cannot be done as written; the message says what, where, the value and the remedy.

    Example:
        try:
            plan = raydist.plan("jobs/cifar.py", workers=2)
        except raydist.MistakeError as error:
            print("nothing was started:", error)
    """

    exit_code = 2


class SpecError(MistakeError):
    """An option, a config key, or a combination of them, is not valid.

    Example:
        raydist.plan("jobs/cifar.py", timeout="soon")
        # SpecError: timeout is 'soon'; write seconds, or 90s, 5m, 2h
    """


class JobFileError(MistakeError):
    """The job file is missing, has no job, or has a syntax error.

    Example:
        raydist.plan("jobs/cifra.py")
        # JobFileError: there is no job file jobs/cifra.py; did you mean cifar.py or cifar_data.py?
    """


class DataError(MistakeError):
    """The input data are missing, not as described, or changed during the run; names file, group and column.

    Example:
        raydist.data.from_parquet("data/", features=["age"], label="bought")
        # DataError, for example because no file has a column `bought`
    """


class UnsupportedError(MistakeError):
    """The train function asks TensorFlow or Keras for something that cannot work under this strategy.

    Example:
        ctx.fit(model, dataset, epochs=3)
        # UnsupportedError under parameter_server if the dataset runs Python, which no worker has
    """


class ClusterError(RaydistError):
    """The cluster cannot give what the plan needs, or could not be reached or started.

    Example:
        raydist.run("jobs/cifar.py", address="head:6379")
        # ClusterError within 15 s if no Ray answers at head:6379
    """

    exit_code = 3


class DeviceError(ClusterError):
    """TensorFlow does not see the GPUs that Ray assigned to a task; names task, host, reason and remedy.

    No other attempt follows: the host's TensorFlow would be the same.

    Example:
        raydist.run("jobs/cifar.py", resources={"worker": {"gpus": 1}})
        # DeviceError, for example because a host has TensorFlow without the libraries of CUDA
    """


class StartTimeoutError(ClusterError):
    """An attempt's tasks were not all training by the start deadline; names the missing ones.

    Example:
        raydist.run("jobs/cifar.py", workers=8, start_timeout="10m")
        # StartTimeoutError if a task is still missing after ten minutes
    """


class StorageError(RaydistError):
    """Storage cannot be read or written.

    Example:
        try:
            handle = raydist.attach("cifar-20261121-093012-1f3a", storage="s3://bucket/runs")
        except raydist.StorageError as error:
            print("check the credentials:", error)
    """

    exit_code = 4


class CheckpointError(StorageError):
    """A checkpoint is damaged, or does not fit the model that it is restored into.

    Example:
        step = ctx.restore(model=model, optimizer=optimizer)
        # CheckpointError if the layers of `model` are not those that were saved
    """


class TrainingError(RaydistError):
    """The run failed while training, or was stopped.

    Example:
        try:
            raydist.run("jobs/cifar.py")
        except raydist.TrainingError as error:
            print(error.result.steps, error.result.checkpoint)
    """


class TaskFailedError(TrainingError):
    """A task raised or died: names the first to fail and lists the others as collateral.

    Example:
        try:
            raydist.run("jobs/cifar.py", workers=2)
        except raydist.TaskFailedError as error:
            print(error.task, error.attempt, error.result.traceback)
    """


class NonFiniteError(TrainingError, MistakeError):
    """With `stop_on_nan`, a reported value became NaN or infinite; names the value and the step.

    No other attempt follows: the steps since the checkpoint would be the same.

    Example:
        raydist.run("jobs/cifar.py", stop_on_nan=True)
        # NonFiniteError once a loss or a metric is NaN or infinite
    """

    exit_code = 1


class RunCancelledError(TrainingError):
    """The run was stopped: by `stop`, by Ctrl-C, or by a signal to its driver.

    Example:
        handle.stop()
        try:
            handle.result(timeout="1m")
        except raydist.RunCancelledError as error:
            print("stopped at step", error.result.steps)
    """

    exit_code = 130


class RunTimeoutError(TrainingError):
    """The run did not end within `timeout`. The chief tries to save its last step first.

    Example:
        try:
            raydist.run("jobs/cifar.py", name="cifar", timeout="8h")
        except raydist.RunTimeoutError as error:
            raydist.run("jobs/cifar.py", name="cifar", resume=True)
    """

    exit_code = 124


class FinalError(TrainingError):
    """Raise it, or a subclass, in your code to end the run: no other attempt follows.

    `raydist.run` raises TaskFailedError for it, as for any exception of your code.

    Example:
        if num_classes != ctx.params["num_classes"]:
            raise raydist.FinalError(f"the data have {num_classes} classes")
    """


class RetryableError(TrainingError):
    """Raise it, or a subclass, in your code if another attempt may succeed.

    Another attempt starts whether or not steps were completed, and also if the error was raised at this step
    before. `max_failures` counts it; when it is used up, `raydist.run` raises TaskFailedError.

    Example:
        try:
            vocabulary = download(url)
        except ConnectionError as error:
            raise raydist.RetryableError(f"{url} does not answer") from error
    """


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, as its own `add_note` does from Python 3.11 on.

    A traceback of Python 3.10 does not show it.
    """
    vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), note]
