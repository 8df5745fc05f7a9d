from __future__ import annotations

import pytest

from raydist.controller.attempt import Attempt
from raydist.controller.lost_attempts import WITHIN_S, HostRecord
from raydist.outcome.status import FailureKind, TaskFailure
from tests.support.fakes import attempt_of, make_failure, make_status, task

ATTEMPT = attempt_of((task("worker/0"), task("worker/1")), make_status("worker/0"), make_status("worker/1"))


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
    nowhere = Attempt.begun(0, (task("worker/0"),))
    failure = make_failure("worker/0", FailureKind.LOST)
    assert HostRecord().with_failure(failure, nowhere, at_s=0.0) == HostRecord()


@pytest.mark.parametrize(
    ("failure", "is_suspected"),
    [
        pytest.param(make_failure("worker/1", FailureKind.START), True, id="did-not-start"),
        pytest.param(make_failure("worker/1", FailureKind.LOST, is_host_in_doubt=True), True, id="lost-host"),
        pytest.param(make_failure("worker/1", FailureKind.LOST), False, id="killed-process"),
        pytest.param(
            make_failure("worker/1", message="[Errno 28] No space left on device: 'cache'"),
            True,
            id="full-disk",
        ),
        pytest.param(make_failure("worker/1"), False, id="exception"),
    ],
)
def test_host_that_may_be_the_reason_is_suspected_for_a_while(
    failure: TaskFailure, is_suspected: bool
) -> None:
    known = HostRecord().with_failure(failure, ATTEMPT, at_s=0.0)
    assert known.suspected(at_s=1.0) == ({"10.0.0.2"} if is_suspected else frozenset())
    assert known.suspected(at_s=WITHIN_S) == frozenset()


def test_host_that_is_avoided_anyhow_is_not_looked_at() -> None:
    twice = record(("worker/1", 0.0), ("worker/1", 0.0), kind=FailureKind.START)
    assert (twice.to_avoid(at_s=1.0), twice.suspected(at_s=1.0)) == ({"10.0.0.2"}, frozenset())
