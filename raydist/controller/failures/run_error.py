"""The RunError of a failed attempt, and of what became known of it later."""

from __future__ import annotations

from raydist import errors
from raydist.controller.failures.root_cause import RootCause
from raydist.spec.result import ErrorClass, RunError, error_class
from raydist.spec.status import FailureKind

_BASES: dict[FailureKind, ErrorClass] = {
    FailureKind.MISTAKE: errors.MistakeError,
    FailureKind.STORAGE: errors.StorageError,
    FailureKind.DEVICE: errors.DeviceError,
    FailureKind.START: errors.ClusterError,
}


def error_of(cause: RootCause, *, attempt: int, suffix: str = "") -> RunError:
    """Returns why a run failed that ends with this attempt."""
    failure = cause.failure
    base = _BASES.get(failure.kind)
    raised_as = errors.TaskFailedError if base is None else error_class(failure.error_type, base)
    return RunError(
        type=failure.error_type if base is None else raised_as.__name__,
        message=cause.sentence(attempt=attempt) + suffix,
        task=failure.task,
        attempt=attempt,
        exit_code=raised_as.exit_code,
        traceback=failure.traceback if base is None else None,
        log_end=failure.log_end,
    )
