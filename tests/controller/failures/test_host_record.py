from __future__ import annotations

import pytest

from raydist.controller.attempt.attempt import Attempt
from raydist.controller.failures.host_record import WITHIN_S, HostRecord
from raydist.controller.task_group import GroupUpdate
from raydist.spec.status import FailureKind
from tests.support.fakes import make_failure, make_status, task

ATTEMPT = Attempt(number=0, tasks=(task("worker/0"), task("worker/1"))).updated(
    GroupUpdate(statuses=(make_status("worker/0"), make_status("worker/1")))
)


def record(*failures: tuple[str, float], kind: FailureKind = FailureKind.LOST) -> HostRecord:
    known = HostRecord()
    for name, at_s in failures:
        known = known.with_failure(make_failure(name, kind), ATTEMPT, at_s=at_s)
    return known


def test_host_that_failed_twice_is_avoided_for_a_while() -> None:
    assert record(("worker/1", 0.0)).to_avoid(at_s=1.0) == frozenset()
    twice = record(("worker/1", 0.0), ("worker/1", 100.0))
    assert twice.to_avoid(at_s=101.0) == {"10.0.0.2"}
    assert twice.to_avoid(at_s=WITHIN_S + 1) == frozenset()


def test_hosts_are_counted_apart() -> None:
    assert record(("worker/0", 0.0), ("worker/1", 0.0)).to_avoid(at_s=1.0) == frozenset()


@pytest.mark.parametrize(("kind", "is_counted"), [(FailureKind.START, True), (FailureKind.USER, False)])
def test_only_what_a_host_can_be_blamed_for_counts(kind: FailureKind, is_counted: bool) -> None:
    twice = record(("worker/1", 0.0), ("worker/1", 0.0), kind=kind)
    assert bool(twice.to_avoid(at_s=1.0)) is is_counted


def test_task_that_never_had_a_host_blames_none() -> None:
    nowhere = Attempt(number=0, tasks=(task("worker/0"),))
    failure = make_failure("worker/0", FailureKind.LOST)
    assert HostRecord().with_failure(failure, nowhere, at_s=0.0) == HostRecord()
