"""Which hosts failed too often of late to be used again at once, and which are to be looked at before."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from raydist.controller.attempt.attempt import Attempt
from raydist.spec.status import FailureKind, TaskFailure

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
