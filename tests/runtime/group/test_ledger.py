"""Whom the ledger suspects of having died without a word."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from raydist.outcome.status import FailureKind, TaskState, TaskStatus
from raydist.runtime.cluster.reachability import Loss
from raydist.runtime.group.ledger import Ledger, progress_every_s
from raydist.runtime.group.ray_failures import unreachable_task
from raydist.runtime.task.greeting import Hello
from raydist.spec.tasks import TaskId
from tests.support.counting import num_calls
from tests.support.fakes import FakeClock

FIRST, SECOND = TaskId.parse("worker/0"), TaskId.parse("worker/1")


def hello(task: TaskId) -> Hello:
    return Hello(
        task=task, address="10.0.0.1:7", pid=7, host="10.0.0.1", node_id="n", scratch_path=Path("/none")
    )


def running(task: TaskId) -> TaskStatus:
    return TaskStatus(task=task, state=TaskState.RUNNING, pid=7, host="10.0.0.1")


def make_ledger(clock: FakeClock, *more: TaskId) -> Ledger:
    ledger = Ledger([FIRST, SECOND, *more], started_at_s=0.0, clock=clock.now)
    for task in (FIRST, SECOND, *more):
        ledger.greeted(hello(task))
        ledger.received(running(task))
    return ledger


def test_task_is_suspected_once_it_has_been_silent() -> None:
    clock = FakeClock()
    ledger = make_ledger(clock)
    clock.advance(1.5)
    ledger.received(running(FIRST))
    assert ledger.suspects(silence_s=2.0) == set()
    clock.advance(1.0)
    assert ledger.suspects(silence_s=2.0) == {SECOND}


def test_all_others_are_suspected_once_one_has_failed() -> None:
    ledger = make_ledger(FakeClock())
    ledger.failed(unreachable_task(hello(FIRST), Loss.PROCESS))
    assert ledger.suspects(silence_s=2.0) == {SECOND}
    [lost] = [status.failure for status in ledger.take_update().statuses if status.failure]
    assert (lost.task, lost.kind) == (FIRST, FailureKind.LOST)


def test_evaluator_that_is_given_up_makes_nobody_suspect() -> None:
    evaluator = TaskId.parse("evaluator/0")
    ledger = make_ledger(FakeClock(), evaluator)
    ledger.failed(unreachable_task(hello(evaluator), Loss.PROCESS))
    assert ledger.suspects(silence_s=2.0) == set()


def test_task_that_has_ended_may_be_silent() -> None:
    clock = FakeClock()
    ledger = make_ledger(clock)
    ledger.received(dataclasses.replace(running(FIRST), state=TaskState.FINISHED))
    clock.advance(60)
    assert ledger.suspects(silence_s=2.0) == {SECOND}


def test_process_that_is_to_take_a_place_is_not_suspected_before_it_is_up() -> None:
    clock = FakeClock()
    ledger = make_ledger(clock)
    ledger.failed(unreachable_task(hello(FIRST), Loss.HOST))
    ledger.replaced(FIRST)
    clock.advance(60)
    ledger.received(running(SECOND))
    assert ledger.suspects(silence_s=2.0) == set()


def test_failure_of_an_unreachable_task_says_what_is_missing() -> None:
    host, process = (unreachable_task(hello(FIRST), loss) for loss in (Loss.HOST, Loss.PROCESS))
    assert (host.kind, process.kind) == (FailureKind.LOST, FailureKind.LOST)
    assert host.message == "its host 10.0.0.1 does not answer any more"
    assert process.message == "its process 7 on 10.0.0.1 died: nothing listens at 10.0.0.1:7 any more"


def test_notes_may_follow_a_failure_that_nothing_else_changes() -> None:
    ledger = make_ledger(FakeClock())
    ledger.failed(unreachable_task(hello(FIRST), Loss.PROCESS))
    ledger.take_update()
    ledger.received(dataclasses.replace(running(FIRST), step=7, notes=("files are kept",)))
    (status,) = ledger.take_update().statuses
    assert (status.state, status.step, status.notes) == (TaskState.FAILED, 0, ("files are kept",))
    ledger.received(dataclasses.replace(running(FIRST), notes=("files are kept",)))
    assert ledger.take_update().statuses == ()


def test_a_status_and_a_look_at_those_who_are_silent_cost_the_same_in_any_group() -> None:
    counts = []
    for num_tasks in (500, 1000):
        clock = FakeClock()
        tasks = [TaskId(task_type=FIRST.task_type, index=index) for index in range(num_tasks)]
        ledger = Ledger(tasks, started_at_s=0.0, clock=clock.now)
        for task in tasks:
            ledger.greeted(hello(task))
            ledger.received(running(task))
        clock.advance(3.0)
        for task in tasks[1:]:
            ledger.received(running(task))
        found: list[frozenset[TaskId]] = []

        def look(ledger: Ledger = ledger, found: list = found) -> None:
            ledger.received(running(SECOND))
            found.append(ledger.suspects(silence_s=2.0))

        counts.append(num_calls(look))
        assert found == [frozenset([FIRST])]
    assert counts[0] == counts[1]
    assert counts[0] < 200


@pytest.mark.parametrize(("num_tasks", "every_s"), [(2, 0.5), (250, 0.5), (500, 1.0), (5000, 2.0)])
def test_tasks_of_a_large_run_tell_their_progress_less_often(num_tasks: int, every_s: float) -> None:
    assert progress_every_s(num_tasks) == every_s
