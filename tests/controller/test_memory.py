"""What RunMachine does about tasks that were killed because memory ran out."""

from __future__ import annotations

import dataclasses
import json

import pytest

from raydist.controller.events import AttemptPlanned, GroupStopped, GroupUpdated, StartAttempt, StopGroup
from raydist.controller.machine import RunMachine
from raydist.controller.revival import Revival
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.codec import as_plain, from_plain
from raydist.outcome.status import AttemptEnd, FailureKind, TaskState
from raydist.planning.plan import Plan
from raydist.spec.tasks import Resources, TaskType
from tests.support.fakes import make_failure, make_plan, make_status

WORKER = TaskType.WORKER


def with_memory(plan: Plan, memory_bytes: int) -> Plan:
    roles = tuple(
        dataclasses.replace(role, resources=Resources(memory_bytes=memory_bytes)) for role in plan.roles
    )
    return dataclasses.replace(plan, roles=roles)


def asking(memory_retry: float | None = 1.5) -> Plan:
    return with_memory(
        make_plan(resources={"worker": {"memory": 8 << 30}}, memory_retry=memory_retry), 8 << 30
    )


def lose_worker(machine: RunMachine, *, is_out_of_memory: bool) -> None:
    """Has all tasks train, and worker/1 die."""
    machine.handle(
        GroupUpdated(GroupUpdate(statuses=(make_status("worker/0"), make_status("worker/1"))), 1, 1)
    )
    failure = make_failure("worker/1", FailureKind.LOST, is_out_of_memory=is_out_of_memory)
    died = make_status("worker/1", TaskState.FAILED, failure=failure)
    assert machine.handle(GroupUpdated(GroupUpdate(statuses=(died,)), 2, 2)) == [StopGroup(for_another=True)]


def test_next_attempt_is_told_which_roles_were_short_of_memory() -> None:
    machine = RunMachine(asking())
    lose_worker(machine, is_out_of_memory=True)
    assert machine.handle(GroupStopped()) == [StartAttempt(1, out_of_memory=(WORKER,))]
    machine.handle(AttemptPlanned(with_memory(machine.plan, 12 << 30)))
    assert machine.notes[-1] == "attempt 1 asks for 12 GiB of memory for each worker instead of 8 GiB"
    lose_worker(machine, is_out_of_memory=True)
    [again] = machine.handle(GroupStopped())
    assert isinstance(again, StartAttempt)
    assert (again.number, again.out_of_memory) == (2, (WORKER, WORKER))
    machine.handle(AttemptPlanned(machine.plan))
    assert machine.notes[-1].endswith("as before: no host has room for more")


@pytest.mark.parametrize(("memory_retry", "is_out_of_memory"), [(None, True), (1.5, False)])
def test_otherwise_it_asks_for_the_same(memory_retry: float | None, is_out_of_memory: bool) -> None:
    machine = RunMachine(asking(memory_retry))
    lose_worker(machine, is_out_of_memory=is_out_of_memory)
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    num_notes = len(machine.notes)
    machine.handle(AttemptPlanned(machine.plan))
    assert len(machine.notes) == num_notes


def test_controller_that_is_brought_back_goes_on_with_it() -> None:
    machine = RunMachine(asking())
    lose_worker(machine, is_out_of_memory=True)
    kept = json.loads(json.dumps(as_plain(machine.history)))
    assert kept[0]["is_out_of_memory"] is True
    history = from_plain(kept, tuple[AttemptEnd, ...])
    revived = RunMachine.revived(asking(), Revival(first_attempt=1, reached=machine.reached, history=history))
    assert revived.start() == [StartAttempt(1, out_of_memory=(WORKER,))]
    del kept[0]["is_out_of_memory"]  # by an older raydist
    assert from_plain(kept, tuple[AttemptEnd, ...])[0].is_out_of_memory is False
