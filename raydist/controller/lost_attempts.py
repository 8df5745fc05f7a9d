"""The attempts that a run has lost: what each one costs, and whether another one follows, on which hosts.

Failures are counted by cause, each against a budget of its own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydist import errors
from raydist.controller.attempt import Attempt
from raydist.controller.root_cause import RootCause
from raydist.errors import RaydistError
from raydist.outcome.result import ErrorClass, RunError, error_class
from raydist.outcome.status import AttemptEnd, FailureKind, GroupLoss, TaskFailure
from raydist.spec.tasks import TaskType

# What the same code raises again on the same data: mistakes of programs, and TensorFlow's error for values
# that an operation does not take, such as a label beyond the last class.
_REPEATING = frozenset(
    {
        *("AttributeError", "ImportError", "InvalidArgumentError", "ModuleNotFoundError", "NameError"),
        *("NotImplementedError", "SyntaxError", "TypeError", "UnboundLocalError"),
    }
)
# A callback's `monitor` that no epoch's logs have: Keras looks for it when the first epoch ends.
_UNKNOWN_MONITOR = "isn't able to automatically determine"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows a failure.

    Attributes:
      reason: Half a sentence, which follows `retried:` or `not retried:`.
    """

    is_retry: bool
    reason: str


def decide(
    end: AttemptEnd, *, restored_step: int, history: Sequence[AttemptEnd], max_failures: int
) -> Decision:
    """Decides what follows `end`.

    Args:
      restored_step: The step that the attempt was restored at; 0 without a checkpoint.
      history: What ended the attempts before, of this submit.
    """
    match end:
        case TaskFailure() if end.kind.is_incurable:
            return _final("another attempt would end the same way")
        case TaskFailure(wants_retry=False):
            return _final(f"{end.error_type} is a FinalError")
        case TaskFailure(wants_retry=True):
            pass
        case TaskFailure(kind=FailureKind.USER) if end.step <= restored_step:
            return _final(f"no step was completed since step {restored_step}, where the attempt began")
        case TaskFailure(kind=FailureKind.USER) if _is_repeated(end, history):
            return _final(f"{end.error_type} was raised at step {end.step} before")
        case TaskFailure(kind=FailureKind.USER) if (
            end.error_type in _REPEATING or _UNKNOWN_MONITOR in end.message
        ):
            return _final(f"{end.error_type} would be raised again: data and code would be the same")
        case TaskFailure(kind=FailureKind.STALLED) if _is_repeated(end, history):
            return _final(f"it stood still at step {end.step} before")
    num_lost = len(history) + 1
    if num_lost > max_failures:
        attempts = "attempt" if num_lost == 1 else "attempts"
        return _final(f"{num_lost} {attempts} lost, --max-failures is {max_failures}")
    reason = f"failure {num_lost} of {max_failures} allowed"
    if isinstance(end, TaskFailure) and end.kind is FailureKind.USER and not end.wants_retry:
        reason += f"; if {end.error_type} is raised at step {end.step} again, the run ends"
    return Decision(is_retry=True, reason=reason)


def _final(reason: str) -> Decision:
    return Decision(is_retry=False, reason=reason)


def _is_repeated(failure: TaskFailure, history: Sequence[AttemptEnd]) -> bool:
    """Whether an attempt before ended the same way, at the same step."""
    how = (failure.kind, failure.error_type, failure.step)
    earlier = (before for before in history if isinstance(before, TaskFailure))
    return any((before.kind, before.error_type, before.step) == how for before in earlier)


# A host that lost a run this many attempts within this time is left alone for the rest of it.
MAX_FAILURES = 2
WITHIN_S = 600.0
# What the exceptions of Python and of TensorFlow say.
_DISK_IS_FULL = "No space left on device"


@dataclass(frozen=True)
class HostRecord:
    """The hosts of the tasks that ended attempts, each with the Unix time.

    Attributes:
      failures: Where a task died, or did not start.
      doubts: Where the host itself may be the reason. A process that was killed is none: its host answers.
    """

    failures: tuple[tuple[str, float], ...] = ()
    doubts: tuple[tuple[str, float], ...] = ()

    def with_failure(self, failure: TaskFailure, attempt: Attempt, *, at_s: float) -> HostRecord:
        status = attempt.statuses.get(failure.task)
        if status is None or not status.host:
            return self
        record, seen = self, (status.host, at_s)
        if failure.kind in (FailureKind.LOST, FailureKind.START):
            record = dataclasses.replace(record, failures=(*record.failures, seen))
        if failure.kind is FailureKind.START or failure.is_host_in_doubt or _DISK_IS_FULL in failure.message:
            record = dataclasses.replace(record, doubts=(*record.doubts, seen))
        return record

    def to_avoid(self, *, at_s: float) -> frozenset[str]:
        """Returns the addresses of the hosts that failed too often before `at_s`."""
        counts = Counter(host for host, failed_at_s in self.failures if at_s - failed_at_s < WITHIN_S)
        return frozenset(host for host, count in counts.items() if count >= MAX_FAILURES)

    def suspected(self, *, at_s: float) -> frozenset[str]:
        """Returns the addresses of the hosts to look at before an attempt uses them again."""
        doubted = frozenset(host for host, failed_at_s in self.doubts if at_s - failed_at_s < WITHIN_S)
        return doubted - self.to_avoid(at_s=at_s)


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


@dataclass(frozen=True, kw_only=True)
class LostAttempts:
    """What ended the attempts of this submit. Immutable.

    Attributes:
      ends: What ended those that count, the oldest first.
      hosts: Which hosts were to blame.
    """

    max_failures: int
    ends: tuple[AttemptEnd, ...] = ()
    hosts: HostRecord = field(default_factory=HostRecord)

    @property
    def out_of_memory(self) -> tuple[TaskType, ...]:
        """The roles that were short of memory, once for each attempt that was lost by it."""
        failures = (end for end in self.ends if isinstance(end, TaskFailure))
        return tuple(failure.task.task_type for failure in failures if failure.is_out_of_memory)

    def with_cause(
        self, cause: RootCause, attempt: Attempt, *, at_s: float
    ) -> tuple[LostAttempts, str | RunError]:
        """Takes in an attempt that a task's failure ended.

        Returns what follows too: a note where that is another attempt, else the error that the run ends with.
        """
        failure, number = cause.failure, attempt.number
        lost = dataclasses.replace(self, hosts=self.hosts.with_failure(failure, attempt, at_s=at_s))
        sentence = cause.sentence(attempt=number)
        if failure.kind is FailureKind.LOST and failure.task in attempt.told_to_leave:
            return lost, f"{sentence}; retried: it had to leave, not counted"
        lost, decision = lost._decide(failure, attempt)
        if decision.is_retry:
            return lost, f"{sentence}; retried: {decision.reason}"
        # That a mistake is final, or an exception of the first attempt, needs no explanation.
        is_plain = failure.kind is FailureKind.USER and len(lost.ends) == 1
        suffix = "" if is_plain or failure.kind.is_incurable else f"; not retried: {decision.reason}"
        return lost, error_of(cause, attempt=number, suffix=suffix)

    def with_silence(self, error: RaydistError, attempt: Attempt) -> tuple[LostAttempts, str | RunError]:
        """Takes in an attempt that no task has ended: its tasks cannot be reached, or an extra role failed.

        Returns what follows too, as `with_cause` does.
        """
        number = attempt.number
        lost, decision = self._decide(GroupLoss(message=str(error)), attempt)
        if decision.is_retry:
            return lost, f"attempt {number} was lost: {error}; retried: {decision.reason}"
        suffix = f"; not retried: {decision.reason}"
        return lost, RunError.from_exception(error, attempt=number, suffix=suffix)

    def _decide(self, end: AttemptEnd, attempt: Attempt) -> tuple[LostAttempts, Decision]:
        decision = decide(
            end, restored_step=attempt.restored_step, history=self.ends, max_failures=self.max_failures
        )
        return dataclasses.replace(self, ends=(*self.ends, end)), decision
