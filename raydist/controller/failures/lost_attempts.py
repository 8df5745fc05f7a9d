"""The attempts that a run has lost, and what follows each: another one, or the run's end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from raydist.controller.attempt.attempt import Attempt
from raydist.controller.failures.failure_policy import Decision, decide
from raydist.controller.failures.host_record import HostRecord
from raydist.controller.failures.root_cause import RootCause
from raydist.controller.failures.run_error import error_of
from raydist.errors import RaydistError
from raydist.spec.result import RunError
from raydist.spec.status import AttemptEnd, FailureKind, GroupLoss, TaskFailure
from raydist.spec.tasks import TaskType


@dataclass(frozen=True, kw_only=True)
class NextAttempt:
    """Another attempt follows; `note` says why the one before was lost."""

    note: str


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
    ) -> tuple[LostAttempts, NextAttempt | RunError]:
        """Takes in an attempt that a task's failure ended; returns what follows too."""
        failure, number = cause.failure, attempt.number
        lost = dataclasses.replace(self, hosts=self.hosts.with_failure(failure, attempt, at_s=at_s))
        sentence = cause.sentence(attempt=number)
        if failure.kind is FailureKind.LOST and failure.task in attempt.told_to_leave:
            return lost, NextAttempt(note=f"{sentence}; retried: it had to leave, not counted")
        lost, decision = lost._decide(failure, attempt)
        if decision.is_retry:
            return lost, NextAttempt(note=f"{sentence}; retried: {decision.reason}")
        # That a mistake is final, or an exception of the first attempt, needs no explanation.
        is_plain = failure.kind is FailureKind.USER and len(lost.ends) == 1
        suffix = "" if is_plain or failure.kind.is_incurable else f"; not retried: {decision.reason}"
        return lost, error_of(cause, attempt=number, suffix=suffix)

    def with_silence(
        self, error: RaydistError, attempt: Attempt
    ) -> tuple[LostAttempts, NextAttempt | RunError]:
        """Takes in an attempt that no task has ended: its tasks cannot be reached, or an extra role failed.

        Returns what follows too.
        """
        number = attempt.number
        lost, decision = self._decide(GroupLoss(message=str(error)), attempt)
        if decision.is_retry:
            return lost, NextAttempt(note=f"attempt {number} was lost: {error}; retried: {decision.reason}")
        suffix = f"; not retried: {decision.reason}"
        return lost, RunError.from_exception(error, attempt=number, suffix=suffix)

    def _decide(self, end: AttemptEnd, attempt: Attempt) -> tuple[LostAttempts, Decision]:
        decision = decide(
            end, restored_step=attempt.restored_step, history=self.ends, max_failures=self.max_failures
        )
        return dataclasses.replace(self, ends=(*self.ends, end)), decision
