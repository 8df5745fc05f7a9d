from __future__ import annotations

import dataclasses

import pytest

from raydist.controller.attempt import Attempt
from raydist.controller.replacement import (
    MAX_QUICK_DEATHS,
    MAX_TOLD_DEATHS,
    QUICK_S,
    Death,
    Deaths,
    is_outlived,
    replace_dead,
)
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import FailureKind, TaskState, TaskStatus
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from tests.support.fakes import make_failure, make_plan, make_status, task

PARAMETER_SERVER = Strategy.PARAMETER_SERVER


def make_attempt(*, workers: int = 2, is_addressed: bool = True) -> Attempt:
    plan: Plan = make_plan(workers=workers, strategy=PARAMETER_SERVER, is_evaluated=True)
    attempt = Attempt.begun(0, plan.tasks)
    statuses = tuple(make_status(str(each)) for each in plan.tasks)
    attempt.take(GroupUpdate(statuses=statuses, all_placed=True, all_addressed=is_addressed))
    return attempt


def lost(name: str, *, incarnation: int = 0) -> TaskStatus:
    failure = make_failure(name, FailureKind.LOST)
    return make_status(name, TaskState.FAILED, failure=failure, incarnation=incarnation)


class Story:
    """An attempt whose tasks die and come back at given times, and what is decided."""

    def __init__(self, *, workers: int = 2) -> None:
        self.attempt = make_attempt(workers=workers)
        self.deaths = Deaths()

    def die(self, name: str, *, at_s: float) -> bool:
        """Returns whether the task is replaced."""
        incarnation = self.attempt.statuses[task(name)].incarnation
        self._take(lost(name, incarnation=incarnation), at_s=at_s)
        tasks = replace_dead(self.attempt, self.deaths, strategy=PARAMETER_SERVER, at_s=at_s)
        return tasks == (task(name),)

    def come_back(self, name: str, *, at_s: float, **fields: object) -> None:
        incarnation = self.attempt.statuses[task(name)].incarnation
        self._take(make_status(name, incarnation=incarnation, **fields), at_s=at_s)

    def flap(self, name: str, times: int, *, every_s: float = 10.0, from_s: float = 0.0) -> None:
        for index in range(times):
            at_s = from_s + index * every_s
            assert self.die(name, at_s=at_s), f"death {index}"
            self.come_back(name, at_s=at_s + 4)

    def _take(self, status: TaskStatus, *, at_s: float) -> None:
        back = self.attempt.take(GroupUpdate(statuses=(status,)))
        self.deaths.end(back, self.attempt, at_s=at_s)


@pytest.mark.parametrize(
    ("name", "kind", "is_replaced"),
    [
        ("worker/0", FailureKind.LOST, True),
        ("evaluator/0", FailureKind.LOST, True),
        ("ps/0", FailureKind.LOST, False),
        ("chief/0", FailureKind.LOST, False),
        ("worker/0", FailureKind.USER, False),
        ("worker/0", FailureKind.START, False),
        ("evaluator/0", FailureKind.USER, False),
        ("worker/0", FailureKind.COLLATERAL, False),
    ],
)
def test_only_lost_workers_and_evaluators_are_replaced(
    name: str, kind: FailureKind, is_replaced: bool
) -> None:
    failure = make_failure(name, kind)
    assert is_outlived(failure, strategy=PARAMETER_SERVER, attempt=make_attempt()) is is_replaced


def test_nothing_is_replaced_before_the_addresses_are_known() -> None:
    attempt = make_attempt(is_addressed=False)
    failure = make_failure("worker/0", FailureKind.LOST)
    assert not is_outlived(failure, strategy=PARAMETER_SERVER, attempt=attempt)


@pytest.mark.parametrize(
    "strategy", [each for each in Strategy if each is not PARAMETER_SERVER], ids=lambda each: each.value
)
def test_no_worker_is_replaced_under_any_other_strategy(strategy: Strategy) -> None:
    assert not is_outlived(
        make_failure("worker/0", FailureKind.LOST), strategy=strategy, attempt=make_attempt()
    )


def test_evaluator_is_replaced_beside_workers_that_train_together() -> None:
    failure = make_failure("evaluator/0", FailureKind.LOST)
    assert is_outlived(failure, strategy=Strategy.MULTI_WORKER_MIRRORED, attempt=make_attempt())


def test_death_tells_task_attempt_step_cause_and_how_long_it_was_missed() -> None:
    story = Story()
    story.attempt.take(GroupUpdate(statuses=(make_status("chief/0", step=120),)))
    assert story.die("worker/1", at_s=100.0)
    told = "worker/1 died (attempt 0, step 120): killed by SIGKILL; "
    assert story.deaths.sentences() == (f"{told}not back in service",)
    story.come_back("worker/1", at_s=104.13)
    assert story.deaths.sentences() == (f"{told}back in service after 4.1 s",)


def test_task_that_still_starts_is_not_back() -> None:
    story = Story()
    story.die("worker/1", at_s=0)
    story.come_back("worker/1", at_s=1, state=TaskState.STARTING)
    assert story.deaths.all[0].back_after_s is None
    story.come_back("worker/1", at_s=4)
    assert story.deaths.all[0].back_after_s == 4


def test_task_that_comes_back_elsewhere_is_told_so() -> None:
    story = Story()
    story.die("worker/1", at_s=0)
    story.come_back("worker/1", at_s=7, state=TaskState.STARTING, address="10.0.0.9:4000")
    assert story.deaths.all[0].outcome == "back at another address after 7.0 s"


def test_evaluator_is_in_service_at_any_address() -> None:
    story = Story()
    story.die("evaluator/0", at_s=0)
    story.come_back("evaluator/0", at_s=7, address="10.0.0.9:4000")
    assert story.deaths.all[0].outcome == "back in service after 7.0 s"
    assert story.attempt.moved == ()


def test_replacement_that_dies_on_its_way_is_replaced_as_well() -> None:
    story = Story()
    assert story.die("worker/1", at_s=0)
    assert story.die("worker/1", at_s=1)
    story.come_back("worker/1", at_s=5)
    assert [death.outcome for death in story.deaths.all] == [
        "its replacement died too",
        "back in service after 4.0 s",
    ]


def test_evaluator_that_keeps_dying_soon_after_it_is_back_is_given_up() -> None:
    story = Story()
    story.flap("evaluator/0", MAX_QUICK_DEATHS)
    assert not story.die("evaluator/0", at_s=10.0 * MAX_QUICK_DEATHS)
    assert story.attempt.dismissed == {task("evaluator/0")}
    assert story.attempt.failures == ()
    assert story.deaths.all[-1].outcome == "given up, as its last 5 replacements died within 60 s"
    assert not any(death.is_given_up for death in story.deaths.all[:-1])


def test_worker_that_keeps_dying_before_it_is_back_is_not_replaced_for_ever() -> None:
    story = Story()
    assert [story.die("worker/1", at_s=100.0 * index) for index in range(MAX_QUICK_DEATHS + 1)] == [
        *[True] * MAX_QUICK_DEATHS,
        False,
    ]


def test_deaths_with_long_service_in_between_never_end() -> None:
    story = Story()
    story.flap("worker/1", 50, every_s=4 + QUICK_S + 1)
    assert len(story.deaths.all) == 50


def test_long_service_begins_the_count_anew() -> None:
    story = Story()
    story.flap("worker/1", MAX_QUICK_DEATHS)
    story.flap("worker/1", MAX_QUICK_DEATHS, from_s=10_000.0)


def test_deaths_of_several_tasks_are_counted_apart() -> None:
    story = Story(workers=3)
    for index in range(MAX_QUICK_DEATHS):
        story.flap(f"worker/{index % 3}", 1, from_s=10.0 * index)
    assert story.die("worker/0", at_s=60.0)


def test_worker_that_keeps_dying_ends_the_attempt_as_tensorflow_waits_for_all() -> None:
    story = Story()
    story.flap("worker/1", MAX_QUICK_DEATHS)
    assert not story.die("worker/1", at_s=50.0)
    assert [failure.task for failure in story.attempt.failures] == [task("worker/1")]


def test_other_failure_of_the_same_moment_leaves_the_dead_unreplaced() -> None:
    attempt, deaths = make_attempt(), Deaths()
    attempt.take(GroupUpdate(statuses=(lost("worker/0"), lost("ps/0"))))
    assert replace_dead(attempt, deaths, strategy=PARAMETER_SERVER, at_s=0) == ()
    assert (len(attempt.failures), deaths.all) == (2, [])


def test_several_that_die_at_once_are_all_replaced() -> None:
    attempt, deaths = make_attempt(), Deaths()
    attempt.take(GroupUpdate(statuses=(lost("worker/0"), lost("worker/1"))))
    tasks = replace_dead(attempt, deaths, strategy=PARAMETER_SERVER, at_s=0)
    assert tasks == (task("worker/0"), task("worker/1"))
    assert [attempt.state_of(each) for each in tasks] == [TaskState.PENDING] * 2
    assert len(deaths.all) == 2


def test_verdict_on_a_death_of_an_earlier_attempt_is_not_carried_over() -> None:
    story = Story()
    for index in range(MAX_QUICK_DEATHS):
        story.die("worker/1", at_s=float(index))
    story.attempt = dataclasses.replace(make_attempt(), number=1)
    assert story.die("worker/1", at_s=1e6)


def test_many_deaths_are_told_by_their_number() -> None:
    deaths = Deaths()
    for index in range(MAX_TOLD_DEATHS + 3):
        failure = make_failure(f"worker/{index % 2}", FailureKind.LOST)
        death = Death(failure=failure, attempt=index, step=index, at_s=float(index), back_after_s=4.0)
        deaths.add(death)
    death = Death(failure=make_failure("worker/1", FailureKind.LOST), attempt=99, step=9, at_s=99.0)
    deaths.give_up(death)
    *told, rest = deaths.sentences()
    assert len(told) == MAX_TOLD_DEATHS
    assert rest == (
        "tasks died 4 more times (worker/0: 2, worker/1: 2) and came back 3 times; worker/1 was given up"
    )
