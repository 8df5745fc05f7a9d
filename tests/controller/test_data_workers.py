"""What the death of a data worker costs: nothing if each of them makes all of the data."""

from __future__ import annotations

import pytest

from raydist.controller.events import Action, Event, GroupUpdated, ReplaceTask, SendCommand, StopGroup
from raydist.controller.machine import RunMachine
from raydist.controller.replacement import MAX_QUICK_DEATHS
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Command, FailureKind, TaskState, TaskStatus
from raydist.spec.job import Strategy, WorkerRange
from tests.support.fakes import make_failure, make_plan, make_status, task

RESTART = [StopGroup(for_another=True)]
REPLACE = [ReplaceTask(task("data-worker/1"))]
STRATEGIES = [Strategy.MULTI_WORKER_MIRRORED, Strategy.PARAMETER_SERVER]


def news(*statuses: TaskStatus, at_s: float = 0.0) -> Event:
    return GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True), at_s)


def dies(name: str, *, incarnation: int = 0, at_s: float = 0.0) -> Event:
    failure = make_failure(name, FailureKind.LOST)
    return news(
        make_status(name, TaskState.FAILED, failure=failure, incarnation=incarnation, address=None), at_s=at_s
    )


class Training:
    """A run whose training tasks have told how data workers make their datasets."""

    def __init__(self, *divides: bool, strategy: Strategy = Strategy.MULTI_WORKER_MIRRORED) -> None:
        plan = make_plan(strategy=strategy, data_workers=2, workers_range=WorkerRange(minimum=1, maximum=2))
        self.machine = RunMachine(plan)
        self.machine.start()
        self.machine.handle(news(*(make_status(str(each), step=120) for each in plan.tasks)))
        self.chief = str(self.machine.chief)
        for told in divides:
            self.tell(divides_data=told)

    def tell(self, name: str | None = None, **fields: object) -> list[Action]:
        return self.machine.handle(news(make_status(name or self.chief, step=120, **fields), at_s=4.0))

    def handle(self, event: Event) -> list[Action]:
        return self.machine.handle(event)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_data_worker_is_replaced_where_each_makes_all_of_the_data(strategy: Strategy) -> None:
    training = Training(False, strategy=strategy)
    assert training.handle(dies("data-worker/1")) == REPLACE
    assert training.tell("data-worker/1", incarnation=1) == []
    [sentence] = training.machine.deaths.sentences()
    assert sentence == (
        "data-worker/1 died (attempt 0, step 120): killed by SIGKILL; back in service after 4.0 s"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("divides", "name"),
    [
        pytest.param((True,), "data-worker/1", id="its-elements-are-lost"),
        pytest.param((False, True), "data-worker/1", id="those-of-one-dataset-are"),
        pytest.param((), "data-worker/1", id="nothing-is-told"),
        pytest.param((False,), "data-worker/0", id="dispatcher"),
    ],
)
def test_other_deaths_cost_an_attempt(divides: tuple[bool, ...], name: str, strategy: Strategy) -> None:
    assert Training(*divides, strategy=strategy).handle(dies(name)) == RESTART


def test_death_that_was_outlived_costs_an_attempt_once_data_are_divided() -> None:
    """They may have been before the death: what a task tells takes a while."""
    training = Training(False)
    assert training.handle(dies("data-worker/1")) == REPLACE
    assert training.tell(divides_data=True) == RESTART
    assert [str(end.task) for end in training.machine.history] == ["data-worker/1"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_data_worker_that_comes_back_elsewhere_costs_a_restart_and_no_failure(strategy: Strategy) -> None:
    """An epoch would wait for ever for what is at the first address."""
    training = Training(False, strategy=strategy)
    training.handle(dies("data-worker/1"))
    training.tell(state=TaskState.RUNNING, divides_data=False, checkpoint="s3://b/r/checkpoints/step-120-a0")
    moved = training.tell("data-worker/1", state=TaskState.STARTING, incarnation=1, address="10.0.0.9:4444")
    assert SendCommand(Command.SAVE, (task(training.chief),)) in moved
    assert training.machine.history == ()


def test_data_worker_that_cannot_stay_is_not_waited_for() -> None:
    assert Training(False).tell("data-worker/1", leaving="SIGTERM") == []
    assert Training(True).tell("data-worker/1", leaving="SIGTERM") != []


def test_data_worker_that_dies_over_and_over_costs_an_attempt() -> None:
    training = Training(False, strategy=Strategy.PARAMETER_SERVER)
    for incarnation in range(MAX_QUICK_DEATHS):
        assert training.handle(dies("data-worker/1", incarnation=incarnation)) == REPLACE
    assert training.handle(dies("data-worker/1", incarnation=MAX_QUICK_DEATHS)) == RESTART
