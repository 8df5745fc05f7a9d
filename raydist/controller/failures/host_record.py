"""Which hosts failed too often of late to be used again at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from raydist.controller.attempt.attempt import Attempt
from raydist.spec.status import FailureKind, TaskFailure

# A host that lost a run this many attempts within this time is left alone for the rest of it.
MAX_FAILURES = 2
WITHIN_S = 600.0


@dataclass(frozen=True)
class HostRecord:
    """The hosts of the tasks that ended attempts by dying or by not starting, each with the Unix time."""

    failures: tuple[tuple[str, float], ...] = ()

    def with_failure(self, failure: TaskFailure, attempt: Attempt, *, at_s: float) -> HostRecord:
        status = attempt.statuses.get(failure.task)
        is_the_hosts = failure.kind in (FailureKind.LOST, FailureKind.START)
        if not is_the_hosts or status is None or not status.host:
            return self
        return HostRecord((*self.failures, (status.host, at_s)))

    def to_avoid(self, *, at_s: float) -> frozenset[str]:
        """Returns the addresses of the hosts that failed too often before `at_s`."""
        counts = Counter(host for host, failed_at_s in self.failures if at_s - failed_at_s < WITHIN_S)
        return frozenset(host for host, count in counts.items() if count >= MAX_FAILURES)
