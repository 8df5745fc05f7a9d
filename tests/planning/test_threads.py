"""TensorFlow's threads in each worker: what it reserves, and its share of the CPUs that nothing uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydist.planning.fitting import resized, with_data_room
from raydist.planning.inventory import Host, Inventory
from raydist.spec.job import Strategy
from raydist.spec.settings.resolution import Origin
from raydist.spec.tasks import ExtraRole, Resources, TaskType
from tests.planning.plans import cluster, plan, workers

EIGHT = Inventory(hosts=(Host(name="this machine", num_cpus=8),), is_embedded=True)


def busy(*free: float, num_cpus: float = 8) -> Inventory:
    """Returns the hosts of a running Ray that have so many CPUs free."""
    found = cluster(*((num_cpus, 0) for _ in free))
    hosts = tuple(replace(host, free_cpus=cpus) for host, cpus in zip(found.hosts, free, strict=True))
    return replace(found, hosts=hosts)


@pytest.mark.parametrize(
    ("inventory", "fields", "threads"),
    [
        pytest.param(EIGHT, {}, 8, id="one-worker"),
        pytest.param(EIGHT, {"workers": workers(3)}, 2, id="several"),
        pytest.param(EIGHT, {"workers": workers(16)}, 1, id="more-than-cores"),
        pytest.param(EIGHT, {"workers": workers(1, 4)}, 2, id="elastic"),
        pytest.param(EIGHT, {"workers": workers(2), "evaluator": True, "data_workers": 1}, 3, id="others"),
        pytest.param(
            EIGHT, {"strategy": Strategy.PARAMETER_SERVER, "workers": workers(2), "ps": 2}, 2, id="ps"
        ),
        pytest.param(cluster((8, 0), (8, 0)), {"workers": workers(2)}, 4, id="packed"),
        pytest.param(cluster((8, 0), (8, 0)), {"workers": workers(10)}, 1, id="full-hosts"),
        pytest.param(cluster((32, 0), (4, 0)), {"workers": workers(2)}, 2, id="smallest-host"),
        pytest.param(
            cluster((8, 2), (8, 0)),
            {"resources": {"worker": {"gpus": 1}}, "workers": workers(2)},
            4,
            id="gpus",
        ),
        pytest.param(busy(3.0, 8.0), {}, 3, id="other-runs"),
        pytest.param(busy(0.0, 6.0), {}, 6, id="full-host"),
        pytest.param(busy(0.0, 0.0), {}, 1, id="nothing-free"),
        pytest.param(cluster(can_grow=True), {}, 1, id="no-host-yet"),
    ],
)
def test_workers_share_the_cpus_that_nothing_uses(
    inventory: Inventory, fields: dict[str, Any], threads: int
) -> None:
    assert plan(inventory, **fields).worker_threads == threads


@pytest.mark.parametrize(
    ("fields", "threads"),
    [
        pytest.param({"resources": {"worker": {"cpus": 1.0}}}, 1, id="asked"),
        pytest.param({"resources": {"worker": {"cpus": 2.5}}}, 2, id="asked-for-more"),
        pytest.param({"resources": {"worker": {"cpus": 0.0}}}, 1, id="asked-for-none"),
        pytest.param({"resources": {"worker": {"cpus": 1.0}}, "resume": True}, 8, id="resumed"),
        pytest.param({"resources": {"worker": {"cpus": 3.0}}, "resume": True}, 3, id="resumed-asked"),
        pytest.param({"virtual_replicas": 4}, 8, id="virtual-replicas"),
        pytest.param({"study": "sweep"}, 1, id="study"),
        pytest.param({"env": {"TF_NUM_INTRAOP_THREADS": "5"}}, 5, id="variable"),
    ],
)
def test_a_number_that_is_asked_for_is_kept(fields: dict[str, Any], threads: int) -> None:
    assert plan(EIGHT, **fields).worker_threads == threads


def test_other_roles_have_the_threads_that_they_reserve() -> None:
    made = plan(EIGHT, strategy=Strategy.PARAMETER_SERVER, ps=1, resources={"ps": {"cpus": 2.0}})
    assert {role.task_type: made.threads_of(role) for role in made.roles} == {
        TaskType.CHIEF: 1,
        TaskType.WORKER: 5,
        TaskType.PS: 2,
    }


def test_extra_roles_keep_their_cpus() -> None:
    role = ExtraRole(name="env", command=("python", "env.py"), num_tasks=2, resources=Resources(num_cpus=2.0))
    assert plan(EIGHT, roles={"env": role}).worker_threads == 4


def test_an_attempt_with_fewer_workers_has_as_many_threads() -> None:
    made = plan(EIGHT, workers=workers(1, 4))
    assert resized(made, 1).worker_threads == 2


def test_ray_data_gets_the_free_cpus() -> None:
    assert with_data_room(plan(EIGHT)).worker_threads == 1


def test_cpus_of_the_built_in_default_are_not_asked_for() -> None:
    one = {"worker": {"cpus": 1.0}}
    assert plan(EIGHT, resources=one, origins={"worker.cpus": Origin.BUILT_IN}).worker_threads == 8
