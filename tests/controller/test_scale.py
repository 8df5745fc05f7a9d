"""What the controller does for an update grows with what is new, not with the run. Counted, not timed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest

from raydist.controller.controller import record_every_s
from raydist.controller.events import GroupStopped, StopGroup
from raydist.controller.machine import RunMachine
from raydist.controller.memory_growth import NUM_SAMPLES, SAMPLE_S, MemoryWatch
from raydist.controller.result import result_of
from raydist.outcome.result import StragglerCause
from raydist.outcome.status import FailureKind, RunState, TaskState, TaskStatus
from raydist.spec.job import Strategy
from raydist.storage.claims import LIVES_WITHIN_S
from raydist.stragglers.watch import NUM_SAMPLES as NUM_PACE_SAMPLES, SAMPLE_S as PACE_SAMPLE_S
from tests.support.counting import Call, num_calls, work_of
from tests.support.fakes import PLACES, make_failure
from tests.support.large_runs import STEPS_PER_S, TASKS_PER_HOST, large_machine, statuses_at, take, updated

pytestmark = pytest.mark.slow

Change = Callable[[TaskStatus], TaskStatus]


def training(num_tasks: int, *, tasks_per_host: int = TASKS_PER_HOST, **options: object) -> RunMachine:
    machine = large_machine(num_tasks, **options)
    take(machine, updated(statuses_at(machine, 1, tasks_per_host=tasks_per_host), at_s=1.0))
    assert machine.state is RunState.RUNNING
    return machine


def with_progress(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, step=status.step + 1)


def told_to_leave(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, leaving="SIGTERM")


def finished(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, state=TaskState.FINISHED)


def with_a_note(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, notes=(f"a choice of {status.task}",))


def dead(status: TaskStatus) -> TaskStatus:
    failure = make_failure(str(status.task), FailureKind.LOST)
    return dataclasses.replace(status, state=TaskState.FAILED, failure=failure)


def back(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, incarnation=1)


def growing(status: TaskStatus) -> TaskStatus:
    return dataclasses.replace(status, peak_memory_bytes=(4 << 30) + (status.step << 22))


def news_of_few(machine: RunMachine, change: Change, *, step: int = 2, at_s: float = 2.0) -> list[Call]:
    """Returns calls that each give the machine news of one task."""
    changed = map(change, statuses_at(machine, step)[7:28])
    return [functools.partial(take, machine, updated((one,), at_s=at_s)) for one in changed]


def assert_same_work(prepare: Callable[[int], list[Call]]) -> None:
    """Compares what one call does that `prepare` returns for runs of 250 and of 500 tasks."""
    small, large = (work_of(functools.partial(prepare, num_tasks)) for num_tasks in (250, 500))
    assert large.instructions <= 1.02 * small.instructions
    assert large.entries <= small.entries < 100
    assert large.num_bytes <= small.num_bytes + 1000  # a copy of a list of all would take 2,000 more


@pytest.mark.parametrize("change", [with_progress, told_to_leave, finished, with_a_note])
def test_news_of_one_task_costs_the_same_in_any_run(change: Change) -> None:
    assert_same_work(lambda num_tasks: news_of_few(training(num_tasks), change))


@pytest.mark.parametrize("states", [[TaskState.STARTING], [TaskState.STARTING, TaskState.RUNNING]])
def test_start_of_one_task_costs_the_same_in_any_run(states: list[TaskState]) -> None:
    def prepare(num_tasks: int) -> list[Call]:
        machine, calls = large_machine(num_tasks), []
        for state in states:
            [call() for call in calls]
            calls = news_of_few(machine, functools.partial(dataclasses.replace, state=state))
        return calls

    assert_same_work(prepare)


@pytest.mark.parametrize("changes", [[dead], [dead, back]], ids=["death", "return"])
def test_death_and_return_of_one_worker_cost_the_same_in_any_run(changes: list[Change]) -> None:
    def prepare(num_tasks: int) -> list[Call]:
        machine = training(num_tasks, strategy=Strategy.PARAMETER_SERVER)
        *before, now = changes
        for change in before:
            [call() for call in news_of_few(machine, change)]
        return news_of_few(machine, now)

    assert_same_work(prepare)


def test_memory_of_one_task_that_grows_costs_the_same_in_any_run() -> None:
    watches = []

    def prepare(num_tasks: int) -> list[Call]:
        statuses, watch = statuses_at(large_machine(num_tasks), 1), MemoryWatch()
        watches.append(watch)
        look = functools.partial(watch.take, left_s=1e9, reserved_bytes=lambda task: 0)

        def at(step: int, some: slice) -> list[TaskStatus]:
            return [growing(dataclasses.replace(one, step=step)) for one in statuses[some]]

        look(statuses, now_s=0.0)
        for sample in range(1, NUM_SAMPLES - 1):
            look(at(sample, slice(32)), now_s=sample * SAMPLE_S)
        now_s, news = NUM_SAMPLES * SAMPLE_S, at(NUM_SAMPLES, slice(7, 28))
        return [functools.partial(look, (one,), now_s=now_s) for one in news]

    assert_same_work(prepare)
    assert {len(watch.notes) for watch in watches} == {21}


def assert_proportional(prepare: Callable[[int], Callable[[], object]]) -> None:
    """Compares the calls per task of 200 and 400 tasks, of what `prepare` returns for so many."""
    small, large = (num_calls(prepare(num_tasks)) / num_tasks for num_tasks in (200, 400))
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
        steps = [round(sample * PACE_SAMPLE_S * STEPS_PER_S) for sample in range(1, 3 + NUM_PACE_SAMPLES)]
        rounds = [updated(statuses_at(machine, 1 + step), at_s=1 + step / STEPS_PER_S) for step in steps]
        machines.append(machine)
        return lambda: [take(machine, event) for event in rounds]

    assert_proportional(prepare)
    assert all(len(machine.pace.marks) > NUM_PACE_SAMPLES for machine in machines)


@pytest.mark.parametrize(("num_tasks", "every_s"), [(2, 1.0), (200, 1.0), (400, 2.0), (10_000, 3.0)])
def test_record_of_a_large_run_is_written_less_often(num_tasks: int, every_s: float) -> None:
    assert record_every_s(num_tasks) == every_s
    assert every_s <= LIVES_WITHIN_S / 3  # so that nobody takes the run for dead


def test_record_costs_the_same_for_each_task() -> None:
    def prepare(num_tasks: int) -> Callable[[], object]:
        machine = training(num_tasks)
        return lambda: result_of(machine, places=PLACES, timings={})

    assert_proportional(prepare)


def test_death_of_a_host_with_many_tasks_is_one_failure_one_attempt_and_one_decision() -> None:
    machine = training(1024, tasks_per_host=64)
    failure = make_failure("worker/0", FailureKind.LOST, is_host_in_doubt=True)
    statuses = statuses_at(machine, 2, tasks_per_host=64)
    died = tuple(
        dataclasses.replace(
            status, state=TaskState.FAILED, failure=dataclasses.replace(failure, task=status.task)
        )
        for status in statuses
        if status.host == statuses[64].host
    )
    assert len(died) == 64
    assert machine.handle(updated(died, at_s=2.0)) == [StopGroup(for_another=True)]
    assert [end.task for end in machine.history] == [statuses[64].task]
    [interruption] = machine.interruptions
    assert interruption.startswith("worker/64 failed first (attempt 0)")
    assert "and 1015 more" in interruption
    assert machine.deaths.all == []
    [start] = machine.handle(GroupStopped())
    assert (start.number, start.suspected) == (1, {statuses[64].host})


def test_watches_find_what_is_wrong_with_one_host_of_many() -> None:
    """So that the other tests and the benchmark, whose tasks are alike, have the watches at work too."""
    machine = training(128)
    slow_host, leaking = "10.1.0.3", statuses_at(machine, 1)[77].task

    def with_troubles(status: TaskStatus) -> TaskStatus:
        links = tuple(
            dataclasses.replace(link, round_trip_s=0.04) if slow_host in (status.host, link.host) else link
            for link in status.pace.links
        )
        status = dataclasses.replace(status, pace=dataclasses.replace(status.pace, links=links))
        return growing(status) if status.task == leaking else status

    for sample in range(1, 1 + NUM_SAMPLES):
        step = round(sample * SAMPLE_S * STEPS_PER_S)
        take(machine, updated(tuple(map(with_troubles, statuses_at(machine, step))), at_s=sample * SAMPLE_S))
    assert [one.cause for one in machine.pace.stragglers] == [StragglerCause.NETWORK] * TASKS_PER_HOST
    assert machine.pace.stragglers[0].message.startswith("the network of worker/24 and worker/25 and")
    # The others on its host grow too, and share the memory.
    named = [note.removeprefix("the memory of ").partition(" grows by ")[0] for note in machine.notes]
    assert named == [f"worker/{number}" for number in range(72, 80)]
