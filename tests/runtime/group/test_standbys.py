"""Standbys on a second node, which take the place of a node that is lost, on a real Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray

from raydist.outcome.status import TaskState
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.placement import Placement
from raydist.runtime.cluster.ray_internals import free_resources
from raydist.runtime.group.standbys import Standbys
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.scratch import scratch_root, sweep
from raydist.runtime.task.greeting import TaskSetup
from raydist.spec.tasks import Resources
from tests.conftest import WaitUntil
from tests.runtime.conftest import COUNTING, Drive, make_plan
from tests.runtime.group.conftest import Attempts, agents_of
from tests.support.ray_heads import drain, gcs_address, ray_node, wait_for_lost_nodes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("only_the_drivers_node")]

ONLY_THERE = 6.0  # CPUs, more than the driver's node has


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = make_plan(1, num_cpus=ONLY_THERE, steps=100_000)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, storage=str(tmp_path), standby=1))


def is_ready(drive: Drive) -> bool:
    return any(one.node_id is not None for one in drive.group.kept._standbys._waiting)


def is_all_free() -> bool:
    """Whether every node has all its CPUs free."""
    total = {node["NodeID"]: node["Resources"].get("CPU") for node in ray.nodes() if node["Alive"]}
    return {node: amounts.get("CPU") for node, amounts in free_resources().items()} == total


def node_of(drive: Drive) -> str:
    (hello,) = drive.group._ledger.hellos.values()
    return hello.node_id


def lose(drive: Drive, wait_until: WaitUntil) -> None:
    wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.FAILED)
    drive.group.stop(for_another=True)


def test_standby_takes_the_place_of_a_drained_node(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    with ray_node(gcs_address(), num_cpus=6):
        first = run.train(plan)
        with ray_node(gcs_address(), num_cpus=6):
            wait_until(lambda: first.poll() or is_ready(first))
            (standby,) = first.group.kept._standbys._waiting
            drain(node_of(first))
            wait_until(lambda: first.poll() or first.statuses["worker/0"].leaving)
            first.group.stop(for_another=True)
            second = run.train(plan)
            assert node_of(second) == standby.node_id
            note = "the host of worker/0 had to be left, and a standby has taken its place"
            assert second.group.poll(timeout_s=0).notes == (note,)
            second.group.stop()


def test_standby_takes_the_place_of_a_lost_node_and_another_one_is_asked_for(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    with ExitStack() as others:
        with ray_node(gcs_address(), num_cpus=6, is_lost=True):
            first = run.train(plan)
            others.enter_context(ray_node(gcs_address(), num_cpus=6))
            wait_until(lambda: first.poll() or is_ready(first))
            (standby,) = first.group.kept._standbys._waiting
        lose(first, wait_until)
        wait_for_lost_nodes(2)
        second = run.train(plan)
        assert node_of(second) == standby.node_id
        note = "the host of worker/0 was lost, and a standby has taken its place"
        assert second.group.poll(timeout_s=0).notes == (note,)
        # It waits in the room of the lost one, for which Ray finds another node.
        with ray_node(gcs_address(), num_cpus=6):
            wait_until(lambda: second.poll() or is_ready(second))
            second.group.stop()
            wait_until(is_all_free)
    sweep(scratch_root(), stale_after_s=-1)  # a lost host keeps its folder until its next task


def test_attempt_without_a_ready_standby_says_so(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    run = attempts(plan)
    with ray_node(gcs_address(), num_cpus=6, is_lost=True):
        first = run.train(plan)
        first.group.poll(timeout_s=2.5)  # a standby that finds no room must not stand in the way
    lose(first, wait_until)
    wait_for_lost_nodes()
    with ray_node(gcs_address(), num_cpus=6):
        second = run.train(plan)
        (note,) = second.group.poll(timeout_s=0).notes
        assert note == "the host of worker/0 was lost, and no standby was ready for it"
        second.group.stop()
    sweep(scratch_root(), stale_after_s=-1)


def test_standby_that_has_died_is_replaced_and_one_of_another_size_is_not_used(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    small = dataclasses.replace(
        plan, roles=(dataclasses.replace(plan.roles[0], resources=Resources(num_cpus=1)),)
    )
    run = attempts(small)
    with ray_node(gcs_address(), num_cpus=1):
        first = run.train(small)
        wait_until(lambda: first.poll() or is_ready(first))
        actors = first.group.kept
        (standby,) = actors._standbys._waiting
        assert actors._placement is not None
        task = small.tasks[0]
        assert actors._standbys.take(task, Resources(num_cpus=2), actors._placement) is None
        ray.kill(standby.agent)
        wait_until(lambda: standby.is_dead)
        first.group.stop(for_another=True)
        second = run.train(small)
        assert agents_of(second) == agents_of(first)
        wait_until(lambda: second.poll() or is_ready(second))
        assert standby not in second.group.kept._standbys._waiting
        second.group.stop()
        wait_until(is_all_free)


def test_each_standby_has_a_node_of_its_own(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    two = dataclasses.replace(
        plan,
        job=dataclasses.replace(plan.job, standby=2),
        roles=(dataclasses.replace(plan.roles[0], resources=Resources(num_cpus=1)),),
    )
    with ray_node(gcs_address(), num_cpus=2), ray_node(gcs_address(), num_cpus=2):
        drive = attempts(two).train(two)
        waiting = drive.group.kept._standbys._waiting
        wait_until(lambda: drive.poll() or (len(waiting) == 2 and all(one.node_id for one in waiting)))
        assert len({node_of(drive), *(one.node_id for one in waiting)}) == 3
        drive.group.stop()
        wait_until(is_all_free)


class Broken:
    """An agent that does not start."""

    def __init__(self) -> None:
        raise ImportError("no raydist on this host")

    def stand_by(self, setup: object, is_awaited: bool) -> None: ...

    def linger(self) -> None: ...


def test_standby_that_cannot_start_is_not_asked_for_without_end(
    ray_cluster: Connection, plan: Plan, wait_until: WaitUntil
) -> None:
    created = []

    def create(setup: object, place: object) -> object:
        created.append(ray.remote(Broken).options(num_cpus=0, scheduling_strategy=place).remote())
        return created[-1]

    (task,) = plan.tasks
    setup = TaskSetup(
        task=task,
        runner=COUNTING,
        keras=plan.keras,
        resources=Resources(num_cpus=1),
        log=LogTarget(storage_uri="unused", run="run", task=task, attempt=0),
        scratch_prefix="run",
    )
    placement, standbys = Placement.request({}, spread=None), Standbys(1, create=create)

    def has_given_up() -> bool:
        standbys.discard(placement)
        standbys.complete(setup, placement, away_from=())
        return bool(standbys.failed_starts.notes)

    wait_until(has_given_up)
    (note,) = standbys.failed_starts.notes
    assert note.startswith("no more standbys are asked for, as 3 could not start: ")
    assert len(created) == 3
    standbys.kill()
    placement.remove()
    wait_until(is_all_free)


def test_run_that_ends_leaves_no_standby_that_has_no_room(
    attempts: Callable[[Plan], Attempts], plan: Plan, wait_until: WaitUntil
) -> None:
    small = dataclasses.replace(
        plan, roles=(dataclasses.replace(plan.roles[0], resources=Resources(num_cpus=1)),)
    )
    attempts(small).train(small).group.stop()
    wait_until(is_all_free)
