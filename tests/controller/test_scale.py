"""What the controller does for an update grows with what is new, not with the run. Counted, not timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from raydist.controller.controller import record_every_s
from raydist.controller.events import GroupStopped, StopGroup
from raydist.controller.machine import RunMachine
from raydist.controller.result import result_of
from raydist.outcome.status import FailureKind, RunState, TaskState, TaskStatus
from raydist.storage.claims import LIVES_WITHIN_S
from tests.support.counting import num_calls
from tests.support.fakes import PLACES, make_failure
from tests.support.large_runs import TASKS_PER_HOST, large_machine, statuses_at, take, updated

Change = Callable[[TaskStatus], TaskStatus]


def training(num_tasks: int, **options: object) -> RunMachine:
    machine = large_machine(num_tasks, **options)
    take(machine, updated(statuses_at(machine, 1), at_s=1.0))
    assert machine.state is RunState.RUNNING
    return machine


def with_progress(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, step=status.step + 1)


def told_to_leave(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, leaving="SIGTERM")


def finished(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, state=TaskState.FINISHED)


@pytest.mark.parametrize("change", [with_progress, told_to_leave, finished])
def test_news_of_one_task_costs_the_same_in_any_run(change: Change) -> None:
    counts = []
    for num_tasks in (1000, 2000):
        machine = training(num_tasks)
        news = updated((change(statuses_at(machine, 2)[7]),), at_s=2.0)
        counts.append(num_calls(lambda machine=machine, news=news: take(machine, news)))
    small, large = counts
    assert large <= small + 20
    assert large < 700


def assert_proportional(prepare: Callable[[int], Callable[[], object]]) -> None:
    """Compares the calls per task of 500 and 1,000 tasks, of what `prepare` returns for so many."""
    small, large = (num_calls(prepare(num_tasks)) / num_tasks for num_tasks in (500, 1000))
    assert large <= 1.05 * small


def test_news_of_all_tasks_costs_as_much_for_each_as_that_of_few() -> None:
    def prepare(num_tasks: int) -> Callable[[], object]:
        machine = training(num_tasks)
        news = updated(statuses_at(machine, 2), at_s=2.0)
        return lambda: take(machine, news)

    assert_proportional(prepare)


def test_start_of_a_run_costs_as_much_for_each_task_in_any_run() -> None:
    machines = []

    def prepare(num_tasks: int) -> Callable[[], object]:
        machine = large_machine(num_tasks)
        starting = statuses_at(machine, 0, state=TaskState.STARTING)
        events = [updated((status,), at_s=1.0) for status in starting]
        events += [updated((status,), at_s=2.0) for status in statuses_at(machine, 1)]
        machines.append(machine)
        return lambda: [take(machine, event) for event in events]

    assert_proportional(prepare)
    assert {machine.state for machine in machines} == {RunState.RUNNING}


def test_samples_of_the_pace_cost_the_same_for_each_task() -> None:
    machines = []

    def prepare(num_tasks: int) -> Callable[[], object]:
        machine = training(num_tasks)
        rounds = [updated(statuses_at(machine, 2 + step), at_s=2.0 + step / 2) for step in range(60)]
        machines.append(machine)
        return lambda: [take(machine, event) for event in rounds]

    assert_proportional(prepare)
    assert all(len(machine.pace.marks) > 1 for machine in machines)


@pytest.mark.parametrize(("num_tasks", "every_s"), [(2, 1.0), (200, 1.0), (400, 2.0), (10_000, 3.0)])
def test_record_of_a_large_run_is_written_less_often(num_tasks: int, every_s: float) -> None:
    assert record_every_s(num_tasks) == every_s
    assert every_s <= LIVES_WITHIN_S / 3  # so that nobody takes the run for dead


def test_record_costs_the_same_for_each_task() -> None:
    def prepare(num_tasks: int) -> Callable[[], object]:
        machine = training(num_tasks)
        return lambda: result_of(machine, places=PLACES, timings={})

    assert_proportional(prepare)


def test_death_of_a_host_with_many_tasks_is_one_decision() -> None:
    machine = training(1000)
    failure = make_failure("worker/0", FailureKind.LOST, is_host_in_doubt=True)
    dead = tuple(
        dataclasses.replace(
            status, state=TaskState.FAILED, failure=dataclasses.replace(failure, task=status.task)
        )
        for status in statuses_at(machine, 2)[:TASKS_PER_HOST]
    )
    event = updated(dead, at_s=2.0)
    assert machine.handle(event) == [StopGroup(for_another=True)]
    assert len(machine.interruptions) == len(machine.history) == 1
    assert "and 991 more" in machine.interruptions[0]
    (start,) = machine.handle(GroupStopped())
    assert start.number == 1
