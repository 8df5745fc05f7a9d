from __future__ import annotations

from collections import Counter

import pytest

from raydist.controller.attempt import has_succeeded, servers
from raydist.controller.events import GroupStopped, GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import RunState, TaskState
from raydist.spec.job import Strategy, Success
from tests.support.fakes import make_failure, make_plan, make_status, task

FINISHED, RUNNING, FAILED = TaskState.FINISHED, TaskState.RUNNING, TaskState.FAILED
SYNCHRONOUS, PARAMETER_SERVER = Strategy.MULTI_WORKER_MIRRORED, Strategy.PARAMETER_SERVER


@pytest.mark.parametrize(
    ("strategy", "states", "is_success"),
    [
        pytest.param(SYNCHRONOUS, {"worker/0": FINISHED, "worker/1": FINISHED}, True, id="all-returned"),
        pytest.param(SYNCHRONOUS, {"worker/0": FINISHED, "worker/1": RUNNING}, False, id="one-still-trains"),
        pytest.param(SYNCHRONOUS, {"worker/0": FINISHED, "worker/1": FAILED}, False, id="dead-worker"),
        pytest.param(
            SYNCHRONOUS, {"worker/0": FINISHED, "evaluator/0": RUNNING}, False, id="evaluator-is-waited-for"
        ),
        pytest.param(Strategy.ONE_DEVICE, {"worker/0": FINISHED}, True, id="single-host"),
        pytest.param(
            SYNCHRONOUS,
            {"worker/0": FINISHED, "worker/1": FINISHED, "data-worker/0": RUNNING},
            True,
            id="data-workers-never-return",
        ),
        pytest.param(
            Strategy.ONE_DEVICE,
            {"worker/0": RUNNING, "data-worker/0": FAILED},
            False,
            id="data-worker-died-while-training",
        ),
        pytest.param(
            PARAMETER_SERVER,
            {"chief/0": FINISHED, "worker/0": RUNNING, "ps/0": RUNNING},
            True,
            id="chief-decides",
        ),
        pytest.param(PARAMETER_SERVER, {"chief/0": RUNNING, "worker/0": FINISHED}, False, id="chief-trains"),
        pytest.param(
            PARAMETER_SERVER,
            {"chief/0": FINISHED, "evaluator/0": RUNNING, "ps/0": RUNNING},
            False,
            id="chief-and-evaluator",
        ),
    ],
)
def test_success_rule(strategy: Strategy, states: dict[str, TaskState], is_success: bool) -> None:
    counts = Counter((task(name).task_type, state) for name, state in states.items())
    assert has_succeeded(strategy, counts) is is_success


def test_servers_are_those_whose_end_the_chief_decides() -> None:
    served = [task(name) for name in ("worker/0", "ps/0", "data-worker/0")]
    tasks = [*served, task("chief/0"), task("evaluator/0")]
    assert servers(PARAMETER_SERVER, tasks) == tuple(served)
    assert servers(SYNCHRONOUS, tasks) == ()


def test_chief_alone_ends_a_run_where_that_is_asked() -> None:
    plan = make_plan(success=Success.CHIEF, is_evaluated=True)
    assert servers(SYNCHRONOUS, plan.tasks, success=Success.CHIEF) == (task("worker/1"),)
    machine = RunMachine(plan)
    for name, state in (("worker/0", FINISHED), ("worker/1", FAILED), ("evaluator/0", RUNNING)):
        failure = make_failure(name) if state is FAILED else None
        machine.handle(GroupUpdated(GroupUpdate(statuses=(make_status(name, state, failure=failure),))))
    assert machine.state is RunState.RUNNING  # the evaluator is waited for
    machine.handle(GroupUpdated(GroupUpdate(statuses=(make_status("evaluator/0", FINISHED),))))
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED


def test_evaluator_of_a_script_ends_with_the_chief() -> None:
    tasks = [task(name) for name in ("chief/0", "worker/0", "ps/0", "evaluator/0")]
    assert servers(PARAMETER_SERVER, tasks, is_script=True) == tuple(tasks[1:])
