"""Tasks that ask for memory, for the cluster's own resources, and for labels, on a real Ray."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from raydist.outcome.status import TaskState
from raydist.planning.capacity import num_fitting, why_not
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.inventory import probe_inventory
from raydist.runtime.cluster.placement import Placement
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from raydist.spec.tasks import Resources, TaskId, TaskType
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, Start, make_plan
from tests.support.ray_heads import ray_node

MIB = 1 << 20
LABELS_SINCE = (2, 47)


def asking(plan: Plan, **asked: Any) -> Plan:
    """Returns the plan with other resources of each task, but few CPUs."""
    resources = Resources(num_cpus=0.5, **asked)
    roles = tuple(dataclasses.replace(role, resources=resources) for role in plan.roles)
    return dataclasses.replace(plan, roles=roles)


def node_of(drive: Drive, task: str) -> str:
    hellos = drive.group._ledger.hellos
    return next(hello.node_id for each, hello in hellos.items() if str(each) == task)


@pytest.fixture(scope="module")
def special_node(ray_cluster: Connection) -> Iterator[str]:
    """A second node with resources and labels of its own; its id."""
    import ray

    deadline = time.monotonic() + 30  # of other tests' nodes Ray learns late that they are gone
    while sum(node["Alive"] for node in ray.nodes()) > 1:
        assert time.monotonic() < deadline, ray.nodes()
        time.sleep(0.1)
    known = {node["NodeID"] for node in ray.nodes()}
    resources = '{"ssd": 2, "accelerator_type:A100": 1}'
    options = [f"--resources={resources}", f"--memory={512 * MIB}"]
    if tuple(map(int, ray.__version__.split(".")[:2])) >= LABELS_SINCE:
        options.append("--labels=zone=a,disk=nvme")
    address = str(ray.get_runtime_context().gcs_address)
    with ray_node(address, num_cpus=2, options=options):
        [special] = {node["NodeID"] for node in ray.nodes() if node["Alive"]} - known
        yield special


@pytest.mark.slow
def test_inventory_has_what_the_nodes_have(ray_cluster: Connection, special_node: str) -> None:
    hosts = {host.node_id: host for host in probe_inventory(ray_cluster).hosts}
    special = hosts.pop(special_node)
    [other] = hosts.values()
    assert special.custom == {"ssd": 2.0, "accelerator_type:A100": 1.0}
    assert special.memory_bytes == 512 * MIB
    assert (special.labels["zone"], special.labels["disk"]) == ("a", "nvme")
    asked = Resources(custom=(("ssd", 1.0),), labels=(("zone", "a"),))
    assert num_fitting(special, asked) == 2
    assert why_not(other, asked) == "needs 1 ssd, has 0 ssd; needs label zone=a, has none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"custom": (("ssd", 1.0),)},
        {"custom": (("accelerator_type:A100", 0.001),)},
        {"labels": (("zone", "in(a,b)"), ("disk", "!hdd"))},
        {"memory_bytes": 200 * MIB, "labels": (("zone", "a"),)},
    ],
    ids=["custom", "accelerator", "labels", "memory"],
)
def test_tasks_go_where_there_is_what_they_ask_for(
    special_node: str, start: Start, wait_until: WaitUntil, asked: dict[str, Any]
) -> None:
    drive = start(asking(make_plan(2, steps=2), **asked))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0", "worker/1"))
    assert {node_of(drive, "worker/0"), node_of(drive, "worker/1")} == {special_node}
    drive.group.stop()


@pytest.mark.slow
def test_task_without_cpus_goes_by_labels_too(special_node: str, start: Start, wait_until: WaitUntil) -> None:
    plan = make_plan(1, num_cpus=0.0, steps=2)
    [role] = plan.roles
    labelled = dataclasses.replace(role, resources=Resources(num_cpus=0.0, labels=(("zone", "a"),)))
    drive = start(dataclasses.replace(plan, roles=(labelled,)))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))
    assert node_of(drive, "worker/0") == special_node
    drive.group.stop()


@pytest.mark.slow
def test_task_of_a_host_that_is_gone_moves_only_where_its_labels_are(
    ray_cluster: Connection, special_node: str, wait_until: WaitUntil
) -> None:
    [other] = {host.node_id for host in probe_inventory(ray_cluster).hosts} - {special_node}
    task, labelled = TaskId.parse("worker/0"), Resources(num_cpus=0.5, labels=(("zone", "a"),))
    placement = Placement.request({task: labelled}, spread=None)
    try:
        wait_until(placement.is_ready)
        before = placement.strategy_for(task, node_id=None).placement_group
        placement.move(task, labelled, away_from=[special_node])  # no other node has the label
        assert placement.strategy_for(task, node_id=None).placement_group == before
        placement.move(task, labelled, away_from=[str(other)])
        moved = placement.strategy_for(task, node_id=None).placement_group
        assert moved != before
        assert moved.wait(timeout_seconds=30)
    finally:
        placement.remove()


@pytest.mark.slow
def test_memory_that_no_node_has_left_is_waited_for(
    special_node: str, start: Start, wait_until: WaitUntil
) -> None:
    """Three times 200 MiB do not fit into 512 MiB."""
    drive = start(asking(make_plan(3, steps=2), memory_bytes=200 * MIB, labels=(("zone", "a"),)))
    for _ in range(6):
        drive.poll()
    assert not drive.update.all_placed
    drive.group.stop()


def test_attempt_after_a_kill_for_memory_asks_for_more_where_a_node_has_it(
    ray_cluster: Connection, special_node: str
) -> None:
    plan = asking(make_plan(1), memory_bytes=200 * MIB, labels=(("zone", "a"),))
    plan = dataclasses.replace(plan, job=dataclasses.replace(plan.job, memory_retry=2.0))
    launcher = RayLauncher(plan, LaunchSpec(connection=ray_cluster, storage_uri="unused", run_uri="unused"))
    for num_deaths, memory_bytes in ((0, 200 * MIB), (1, 400 * MIB), (2, 400 * MIB)):
        [role] = launcher.replan(avoid=frozenset(), out_of_memory=(TaskType.WORKER,) * num_deaths).roles
        assert role.resources.memory_bytes == memory_bytes


@pytest.mark.slow
def test_task_tells_its_peak_memory(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(1, steps=100_000))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
    status = drive.statuses["worker/0"]
    peak, limit = status.peak_memory_bytes, status.memory_limit_bytes
    assert peak is not None
    assert limit is not None
    assert limit > peak
    assert 20 * MIB < peak < 20 * 1024 * MIB
    drive.group.stop()
