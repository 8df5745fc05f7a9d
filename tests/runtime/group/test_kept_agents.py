"""The agents of a lost attempt are those of the next, on a real Ray."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from raydist.outcome.status import FailureKind, TaskState
from raydist.planning.plan import Plan
from raydist.runtime.host.scratch import scratch_root
from raydist.spec.tasks import Resources, TaskId
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, make_plan
from tests.runtime.group.conftest import Attempts, agents_of

BOTH = ("worker/0", "worker/1")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = make_plan(2, num_cpus=1.0, steps=100_000)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, storage=str(tmp_path)))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lose(drive: Drive, pid: int, wait_until: WaitUntil, *, task: str = "worker/1") -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: drive.poll() or drive.state(task) is TaskState.FAILED)
    failure = drive.statuses[task].failure
    assert failure.kind is FailureKind.LOST


def test_agents_outlive_a_process_and_have_another_one_in_the_next_attempt(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents, processes = agents_of(first), {first.statuses[task].pid for task in BOTH}
    lose(first, first.statuses["worker/1"].pid, wait_until)
    first.group.stop(for_another=True)
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    assert list(scratch_root().iterdir()) == []
    assert all(Path(f"/proc/{pid}").exists() for pid in agents.values())

    second = run.train(plan)
    assert agents_of(second) == agents
    assert processes.isdisjoint(second.statuses[task].pid for task in BOTH)
    assert second.statuses["worker/1"].incarnation == 0
    second.group.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in agents.values())


@pytest.mark.slow
def test_what_is_imported_stays_between_two_attempts_even_if_it_is_not_kept_warm(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    cold = dataclasses.replace(plan, job=dataclasses.replace(plan.job, keep_warm=0.0))
    run, servers = attempts(cold), set()
    for _ in range(3):
        drive = run.train(cold)
        servers |= {parent_of(drive.statuses[task].pid) for task in BOTH}
        drive.group.stop(for_another=True)
    run.launcher.close()
    (server,) = servers
    wait_until(lambda: not Path(f"/proc/{server}").exists())


@pytest.mark.slow
def test_only_a_lost_agent_is_replaced(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents = agents_of(first)
    lose(first, agents["worker/1"], wait_until)
    assert first.statuses["worker/1"].failure.message.startswith(f"its agent {agents['worker/1']} on ")  # type: ignore[union-attr]
    first.group.stop(for_another=True)
    second = run.train(plan)
    assert agents_of(second)["worker/0"] == agents["worker/0"]
    assert agents_of(second)["worker/1"] != agents["worker/1"]
    second.group.stop()


@pytest.mark.slow
def test_agents_end_with_a_run_that_has_no_other_attempt(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents = agents_of(first)
    first.group.stop(for_another=True)
    for _ in range(2):
        run.launcher.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents.values()))


@pytest.mark.slow
def test_plan_that_asks_for_more_has_agents_of_its_own(
    attempts: Callable[[Plan], Attempts], plan: Plan
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents = agents_of(first)
    first.group.stop(for_another=True)
    larger = dataclasses.replace(plan.roles[0], resources=Resources(num_cpus=2))
    second = run.train(dataclasses.replace(plan, roles=(larger,)))
    assert set(agents_of(second).values()).isdisjoint(agents.values())
    second.group.stop()


@pytest.mark.slow
def test_stop_for_another_attempt_before_anything_is_up_leaves_nothing(
    attempts: Callable[[Plan], Attempts], plan: Plan
) -> None:
    run = attempts(plan)
    drive = run.begin(plan)
    drive.group.stop(for_another=True)
    run.launcher.close()


@pytest.mark.slow
def test_agent_that_dies_between_two_attempts_is_lost_and_named(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents = agents_of(first)
    first.group.stop(for_another=True)
    os.kill(agents["worker/1"], signal.SIGKILL)
    second = run.begin(plan)
    wait_until(lambda: second.poll() or second.state("worker/1") is TaskState.FAILED)
    assert "its agent died" in second.statuses["worker/1"].failure.message  # type: ignore[union-attr]
    second.group.stop(for_another=True)
    third = run.train(plan)
    assert TaskId.parse("worker/1") in third.group._ledger.hellos
    third.group.stop()


def test_agent_that_was_told_to_leave_is_of_no_use_to_the_next_attempt(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    first = run.train(plan)
    agents = agents_of(first)
    os.kill(agents["worker/1"], signal.SIGTERM)
    wait_until(lambda: first.poll() or first.statuses["worker/1"].leaving)
    first.group.stop(for_another=True)
    second = run.train(plan)
    assert agents_of(second)["worker/0"] == agents["worker/0"]
    assert agents_of(second)["worker/1"] != agents["worker/1"]
    assert second.statuses["worker/1"].leaving is None
    second.group.stop()
