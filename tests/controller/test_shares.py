"""A run with --shares auto gives its workers other shares of the batch once their speeds are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from raydist.controller.events import (
    Action,
    AttemptPlanned,
    Await,
    Deadline,
    DeadlinePassed,
    GroupStopped,
    GroupUpdated,
    SendCommand,
    StartAttempt,
    StopGroup,
)
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Command, RunState, TaskPace
from raydist.planning.assignment import make_assignments
from raydist.spec.shares import Shares
from raydist.spec.tasks import TaskId, TaskType
from raydist.stragglers.watch import NUM_SAMPLES, SAMPLE_S
from tests.support.fakes import make_plan, make_status

SAVE = SendCommand(Command.SAVE, (TaskId(task_type=TaskType.WORKER, index=0),))
STEPS = 20
OWN = {"worker/0": 0.2, "worker/1": 0.8}  # the shares of each step that they do not wait


def train(
    machine: RunMachine, own: Mapping[str, float], *, checkpoint: str | None = None, begin: int = 0
) -> list[Action]:
    """Returns what the machine does while the workers train until their speeds are known."""
    actions = []
    for sample in range(begin, begin + NUM_SAMPLES + 1):
        seconds = SAMPLE_S * sample
        statuses = tuple(
            make_status(
                name,
                step=STEPS * sample,
                checkpoint=checkpoint,
                pace=TaskPace(
                    at_s=seconds, steps=STEPS * sample, collective_wait_s=seconds * (1 - own_share)
                ),
            )
            for name, own_share in own.items()
        )
        actions += machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
        if machine.state is RunState.STOPPING:
            break
    return actions


def restarted(machine: RunMachine, own: Mapping[str, float]) -> StartAttempt:
    """Returns the new attempt of a machine that asks for one, planned."""
    assert train(machine, own) == [SAVE, Await(Deadline.SAVE)]
    assert train(machine, own, checkpoint="x/step-00000060-00", begin=NUM_SAMPLES + 1) == [
        StopGroup(for_another=True, keeps_state=True)
    ]
    [start] = machine.handle(GroupStopped())
    assert isinstance(start, StartAttempt)
    machine.handle(AttemptPlanned(dataclasses.replace(machine.plan, speeds=start.speeds)))
    return start


def shares_at(machine: RunMachine, *hosts: str) -> tuple[int, ...]:
    """Returns the shares of the machine's attempt, with its workers on these hosts."""
    addresses = {
        TaskId(task_type=TaskType.WORKER, index=index): f"{host}:3333" for index, host in enumerate(hosts)
    }
    assigned = make_assignments(machine.plan, addresses, attempt=1, run_uri="x")
    return next(iter(assigned.values())).shares


def auto_machine() -> RunMachine:
    return RunMachine(make_plan(shares=Shares()))


def test_shares_follow_the_hosts_that_were_measured() -> None:
    machine = auto_machine()
    restarted(machine, OWN)
    assert shares_at(machine, "10.0.0.1", "10.0.0.2") == (80, 20)
    assert shares_at(machine, "10.0.0.2", "10.0.0.1") == (20, 80)
    assert shares_at(machine, "10.0.0.1", "10.0.0.3") == ()  # one that is not known
    [restart] = machine.restarts
    assert restart.sentence().startswith(
        "the fastest worker computes 4.0 times as many examples per second as the slowest, so --shares "
        "auto gives it more of each batch: training was restarted"
    )


def test_shares_are_changed_twice_at_most() -> None:
    machine = auto_machine()
    restarted(machine, OWN)
    restarted(machine, {"worker/0": 0.3, "worker/1": 0.8})
    weights = shares_at(machine, "10.0.0.1", "10.0.0.2")
    assert weights == (91, 9)  # 80 / 0.3 to 20 / 0.8
    assert train(machine, OWN) == []


@pytest.mark.parametrize(
    ("own", "shares"),
    [
        ({"worker/0": 0.6, "worker/1": 0.8}, Shares()),  # 1.17 times as fast: not worth it
        (OWN, Shares(weights=(1, 1))),
        (OWN, None),
    ],
)
def test_other_runs_continue_with_their_shares(own: Mapping[str, float], shares: Shares | None) -> None:
    assert train(RunMachine(make_plan(shares=shares)), own) == []


def test_run_whose_chief_saves_nothing_continues_with_its_shares() -> None:
    machine = auto_machine()
    assert train(machine, OWN) == [SAVE, Await(Deadline.SAVE)]
    assert machine.handle(DeadlinePassed(Deadline.SAVE)) == []
    assert train(machine, OWN, begin=NUM_SAMPLES + 1) == []
    assert machine.notes[0].startswith("--shares auto has no effect: no checkpoint was saved, from which")
