"""An evaluator beside workers that train together, as one beside parameter servers."""

from __future__ import annotations

from raydist.controller.events import GroupStopped, GroupUpdated, ReplaceTask, SendCommand, StopGroup
from raydist.controller.machine import RunMachine
from raydist.controller.replacement import MAX_QUICK_DEATHS
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Command, FailureKind, RunState, TaskState, TaskStatus
from tests.support.fakes import make_failure, make_plan, make_status, task

FINISH = SendCommand(Command.FINISH, (task("evaluator/0"),))


def news(*statuses: TaskStatus) -> GroupUpdated:
    return GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True), 0.0)


def machine_in_training() -> RunMachine:
    machine = RunMachine(make_plan(is_evaluated=True))
    machine.handle(news(*(make_status(name) for name in ("worker/0", "worker/1", "evaluator/0"))))
    return machine


def lost(name: str, *, incarnation: int = 0) -> GroupUpdated:
    failure = make_failure(name, FailureKind.LOST)
    return news(make_status(name, TaskState.FAILED, failure=failure, incarnation=incarnation))


def test_evaluator_is_told_when_the_chief_has_returned_and_ends_the_run() -> None:
    machine = machine_in_training()
    assert machine.handle(news(make_status("worker/1", TaskState.FINISHED))) == []
    assert machine.handle(news(make_status("worker/0", TaskState.FINISHED))) == [FINISH]
    assert machine.handle(news(make_status("evaluator/0", TaskState.FINISHED))) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED


def test_lost_evaluator_is_replaced_while_the_workers_go_on() -> None:
    machine = machine_in_training()
    assert machine.handle(lost("evaluator/0")) == [ReplaceTask(task("evaluator/0"))]
    assert (machine.state, machine.attempt.number) == (RunState.RUNNING, 0)


def test_chief_is_told_once_that_the_evaluator_was_given_up() -> None:
    machine = machine_in_training()
    for incarnation in range(MAX_QUICK_DEATHS):
        machine.handle(lost("evaluator/0", incarnation=incarnation))
    alone = SendCommand(Command.FINISH, (task("worker/0"),))
    assert machine.handle(lost("evaluator/0", incarnation=MAX_QUICK_DEATHS)) == [alone]
    assert machine.handle(news()) == []
    assert machine.state is RunState.RUNNING


def test_chief_is_told_that_the_evaluator_has_ended_before_it() -> None:
    machine = machine_in_training()
    alone = SendCommand(Command.FINISH, (task("worker/0"),))
    assert machine.handle(news(make_status("evaluator/0", TaskState.FINISHED))) == [alone]
    assert machine.handle(news()) == []


def test_lost_worker_ends_the_attempt_for_the_evaluator_too() -> None:
    machine = machine_in_training()
    machine.handle(lost("worker/1"))
    assert machine.state is RunState.STOPPING
