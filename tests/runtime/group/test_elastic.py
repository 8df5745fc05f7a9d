"""Attempts of an elastic run: their workers keep their agents when others come and go, on a real Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from raydist.outcome.status import TaskState
from raydist.planning.fitting import resized
from raydist.planning.plan import Plan
from raydist.runtime.cluster.ray_internals import free_resources
from raydist.runtime.group import standbys
from raydist.runtime.host.scratch import scratch_root, sweep
from raydist.spec.job import WorkerRange
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, make_plan
from tests.runtime.group.conftest import Attempts, agents_of
from tests.support.ray_heads import drain, gcs_address, ray_node, wait_for_lost_nodes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("only_the_drivers_node")]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of 3 workers; the driver's node has 4 CPUs."""
    plan = make_plan(3, num_cpus=2.0, steps=100_000)
    workers = WorkerRange(minimum=1, maximum=3)
    return dataclasses.replace(
        plan, job=dataclasses.replace(plan.job, storage=str(tmp_path), workers=workers)
    )


def nodes_of(drive: Drive) -> dict[str, str]:
    return {str(task): hello.node_id for task, hello in drive.group._ledger.hellos.items()}


def test_workers_of_a_lost_node_are_done_without_and_come_back_with_another_node(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    with ExitStack() as others:
        with ray_node(gcs_address(), num_cpus=2, is_lost=True):
            first = run.train(plan)
            (lost,) = [task for task, node in nodes_of(first).items() if node != nodes_of(first)["worker/0"]]
        wait_until(lambda: first.poll() or first.state(lost) is TaskState.FAILED)
        first.group.stop(for_another=True)
        smaller = run.launcher.replan(avoid=frozenset())
        assert smaller.num_workers == 2
        second = run.train(smaller)
        staying = {pid for task, pid in agents_of(first).items() if task != lost}
        assert set(agents_of(second).values()) == staying
        assert run.launcher.room(smaller, is_placed=True) == 2

        wait_for_lost_nodes()
        others.enter_context(ray_node(gcs_address(), num_cpus=2))
        wait_until(lambda: run.launcher.room(smaller, is_placed=True) == 3)  # where Ray moves its room to
        (grown,) = second.group.kept._growth._asked
        assert not any(amounts.get("CPU", 0) >= 2 for amounts in free_resources().values())
        second.group.stop(for_another=True)
        larger = run.launcher.replan(avoid=frozenset())
        assert larger.num_workers == 3
        third = run.train(larger)
        assert set(agents_of(third).values()) > staying
        assert grown.agent in third.group.kept.handles.values()
        third.group.stop()
    sweep(scratch_root(), stale_after_s=-1)  # a lost host keeps its folder until its next task


def test_workers_go_on_without_one_whose_node_is_drained(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    with ray_node(gcs_address(), num_cpus=2):
        first = run.train(plan)
        (leaving,) = [task for task, node in nodes_of(first).items() if node != nodes_of(first)["worker/0"]]
        drain(nodes_of(first)[leaving])
        wait_until(lambda: first.poll() or first.statuses[leaving].leaving)
        first.group.stop(for_another=True)
        smaller = run.launcher.replan(avoid=frozenset())
        assert smaller.num_workers == 2
        second = run.train(smaller)
        assert set(agents_of(second).values()) == set(agents_of(first).values()) - {agents_of(first)[leaving]}
        assert run.launcher.room(smaller, is_placed=True) == 2
        second.group.stop()


def test_room_of_workers_that_never_begin_is_given_back(
    attempts: Callable[[Plan], Attempts],
    plan: Plan,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = attempts(plan)
    smaller = resized(plan, 2)
    first = run.train(smaller)
    with ray_node(gcs_address(), num_cpus=2):
        wait_until(lambda: run.launcher.room(smaller, is_placed=True) == 3)
        monkeypatch.setattr(standbys, "_UNUSED_S", -1.0)
        assert run.launcher.room(smaller, is_placed=True) == 2
        wait_until(lambda: any(amounts.get("CPU", 0) >= 2 for amounts in free_resources().values()))
        assert run.launcher.room(smaller, is_placed=True) == 2
        assert len(first.group.kept._growth) == 0
        first.group.stop()


def test_run_that_ends_gives_back_the_room_of_workers_that_have_not_begun(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    smaller = resized(plan, 2)
    first = run.train(smaller)
    with ray_node(gcs_address(), num_cpus=2):
        kept = first.group.kept
        wait_until(lambda: run.launcher.room(smaller, is_placed=True) == 2 and len(kept._growth) == 1)
        wait_until(lambda: not any(amounts.get("CPU", 0) >= 2 for amounts in free_resources().values()))
        first.group.stop()
        wait_until(lambda: sum(amounts.get("CPU", 0) for amounts in free_resources().values()) == 6)


def test_last_agents_take_the_places_of_workers_whose_host_is_avoided(
    attempts: Callable[[Plan], Attempts], plan: Plan
) -> None:
    run = attempts(plan)
    with ray_node(gcs_address(), num_cpus=2):
        first = run.train(plan)
        avoided = nodes_of(first)["worker/0"]
        first.group.stop(for_another=True)
        num_workers = run.launcher._num_kept(dataclasses.replace(plan, avoid=(avoided,)))
        staying = {pid for task, pid in agents_of(first).items() if nodes_of(first)[task] != avoided}
        assert num_workers == len(staying)
        roles = (dataclasses.replace(plan.roles[0], num_tasks=num_workers),)
        second = run.train(dataclasses.replace(plan, roles=roles, avoid=(avoided,)))
        assert set(agents_of(second).values()) == staying
        assert "worker/0" in agents_of(second)
        second.group.stop()
