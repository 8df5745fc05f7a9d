"""RunError: why a run failed, as data."""

from __future__ import annotations

import dataclasses
import traceback as tracebacks
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydist import errors
from raydist.controller.failures.root_cause import RootCause
from raydist.controller.task_group import Explanation
from raydist.spec.status import FailureKind
from raydist.spec.tasks import TaskId

ErrorClass: TypeAlias = type[errors.RaydistError]

_BASES: dict[FailureKind, ErrorClass] = {
    FailureKind.MISTAKE: errors.MistakeError,
    FailureKind.STORAGE: errors.StorageError,
    FailureKind.START: errors.ClusterError,
}
_BASES_BY_EXIT_CODE: dict[int, ErrorClass] = {
    2: errors.MistakeError,
    3: errors.ClusterError,
    4: errors.StorageError,
}


@dataclass(frozen=True, kw_only=True)
class RunError:
    """Why a run failed.

    Attributes:
      type: Class name of the user's exception, of what ended a process, or of raydist's error. A user may
        name a class as raydist does, so it decides nothing.
      task: The task that failed first; None where none did. `attempt` likewise.
      log: URI of that task's log folder.
      traceback: The user's Python traceback, to be printed once; None where there is none. `log_end`, the
        last lines of a dead process's log, likewise.
      raised_as: The class that `raydist.run` raises, which has the exit code.
    """

    type: str
    message: str
    task: TaskId | None = None
    attempt: int | None = None
    log: str | None = None
    traceback: str | None = None
    raised_as: ErrorClass = errors.TaskFailedError
    log_end: str | None = None

    @classmethod
    def from_cause(cls, cause: RootCause, *, attempt: int, suffix: str = "") -> RunError:
        failure = cause.failure
        base = _BASES.get(failure.kind)
        raised_as = errors.TaskFailedError if base is None else _class_named(failure.error_type, base)
        return cls(
            type=failure.error_type if base is None else raised_as.__name__,
            message=cause.sentence(attempt=attempt) + suffix,
            task=failure.task,
            attempt=attempt,
            traceback=failure.traceback if base is None else None,
            raised_as=raised_as,
            log_end=failure.log_end,
        )

    @classmethod
    def from_exception(cls, error: BaseException, *, attempt: int | None, suffix: str = "") -> RunError:
        raised_as = type(error) if isinstance(error, errors.RaydistError) else None
        return cls(
            type=type(error).__name__,
            message=(str(error) or type(error).__name__) + suffix,
            attempt=attempt,
            traceback=None if raised_as else "".join(tracebacks.format_exception(error)),
            raised_as=raised_as or errors.TaskFailedError,
        )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunError:
        """Returns the error that `as_dict` described, but for its traceback."""
        task, exit_code = stored["task"], stored.get("exit_code")
        is_of_training = exit_code == errors.TaskFailedError.exit_code
        if is_of_training and task is not None:
            raised_as: ErrorClass = errors.TaskFailedError
        elif is_of_training or exit_code is None:  # None: a record from before the code was in it
            raised_as = _class_named(stored["type"], errors.RaydistError, default=errors.TaskFailedError)
        else:
            base = _BASES_BY_EXIT_CODE.get(exit_code, errors.RaydistError)
            raised_as = _class_named(stored["type"], base)
        return cls(
            type=stored["type"],
            message=stored["message"],
            task=None if task is None else TaskId.parse(task),
            attempt=stored["attempt"],
            log=stored["log"],
            raised_as=raised_as,
        )

    @property
    def exit_code(self) -> int:
        return self.raised_as.exit_code

    def explained(self, explanation: Explanation) -> RunError:
        """Returns the error with what became known of the failure, where it is about that one."""
        if self.task != explanation.task or explanation.before not in self.message:
            return self
        message = self.message.replace(explanation.before, explanation.message)
        return dataclasses.replace(self, message=message, log_end=explanation.log_end)

    def with_log(self, task_logs: Callable[[TaskId, int], str]) -> RunError:
        """Returns the error with the place of the task's logs, where a task failed."""
        if self.task is None or self.attempt is None:
            return self
        return dataclasses.replace(self, log=task_logs(self.task, self.attempt))

    def as_dict(self) -> dict[str, str | int | None]:
        return {
            "type": self.type,
            "message": self.message,
            "task": None if self.task is None else str(self.task),
            "attempt": self.attempt,
            "log": self.log,
            "exit_code": self.exit_code,
        }

    def as_exception(self) -> errors.RaydistError:
        """Returns the error of raydist that says the same; TaskFailedError for the user's exceptions."""
        task = None if self.task is None else str(self.task)
        error = self.raised_as(self.message, task=task, attempt=self.attempt, log=self.log)
        if self.log_end:
            error.add_note(f"The end of its log:\n{self.log_end}")
        return error


def _class_named(name: str, base: ErrorClass, *, default: ErrorClass | None = None) -> ErrorClass:
    """Returns raydist's error of that name if it is a `base`; else `default`, or `base` without one."""
    found = getattr(errors, name) if name in errors.__all__ else None
    return found if found is not None and issubclass(found, base) else default or base
