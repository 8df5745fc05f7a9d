"""RunError: why a run failed, as data."""

from __future__ import annotations

import dataclasses
import traceback as tracebacks
from collections.abc import Callable
from dataclasses import dataclass

from raydist import errors
from raydist.controller.root_cause import RootCause
from raydist.controller.task_group import Explanation
from raydist.spec.status import FailureKind
from raydist.spec.tasks import TaskId

_BASES: dict[FailureKind, type[errors.RaydistError]] = {
    FailureKind.MISTAKE: errors.MistakeError,
    FailureKind.STORAGE: errors.StorageError,
    FailureKind.START: errors.ClusterError,
}


@dataclass(frozen=True, kw_only=True)
class RunError:
    """Why a run failed.

    Attributes:
      type: Class name of the user's exception, of what ended a process, or of raydist's error.
      task: The task that failed first; None where none did. `attempt` likewise.
      log: URI of that task's log folder.
      traceback: The user's Python traceback, to be printed once; None where there is none. `log_end`, the
        last lines of a dead process's log, likewise.
    """

    type: str
    message: str
    task: TaskId | None = None
    attempt: int | None = None
    log: str | None = None
    traceback: str | None = None
    log_end: str | None = None

    @classmethod
    def from_cause(cls, cause: RootCause, *, attempt: int, suffix: str = "") -> RunError:
        failure = cause.failure
        base = _BASES.get(failure.kind)
        type_name = failure.error_type
        if base is not None and not issubclass(_class_named(type_name), base):
            type_name = base.__name__
        return cls(
            type=type_name,
            message=cause.sentence(attempt=attempt) + suffix,
            task=failure.task,
            attempt=attempt,
            traceback=failure.traceback if base is None else None,
            log_end=failure.log_end,
        )

    @classmethod
    def from_exception(cls, error: BaseException, *, attempt: int | None, suffix: str = "") -> RunError:
        is_ours = isinstance(error, errors.RaydistError)
        return cls(
            type=type(error).__name__,
            message=(str(error) or type(error).__name__) + suffix,
            attempt=attempt,
            traceback=None if is_ours else "".join(tracebacks.format_exception(error)),
        )

    @property
    def exit_code(self) -> int:
        return _class_named(self.type).exit_code

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
        }

    def as_exception(self) -> errors.RaydistError:
        """Returns the error of raydist that says the same; TaskFailedError for the user's exceptions."""
        task = None if self.task is None else str(self.task)
        error = _class_named(self.type)(self.message, task=task, attempt=self.attempt, log=self.log)
        if self.log_end:
            error.add_note(f"The end of its log:\n{self.log_end}")
        return error


def _class_named(name: str) -> type[errors.RaydistError]:
    """Returns raydist's error of that name; TaskFailedError for any other name."""
    found: type[errors.RaydistError] = getattr(errors, name if name in errors.__all__ else "TaskFailedError")
    return found
