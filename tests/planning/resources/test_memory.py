from __future__ import annotations

from typing import Any

import pytest

from raydist.planning.fitting import describe_growth, fitted, with_more_memory
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskType
from tests.planning.plans import plan, workers

GIB = 1 << 30
WORKER, PS = TaskType.WORKER, TaskType.PS


def hosts(*memory: int) -> Inventory:
    found = tuple(Host(name=f"h{i}", num_cpus=8, memory_bytes=each * GIB) for i, each in enumerate(memory))
    return Inventory(hosts=found, source="Ray")


def memory_of(made: Plan) -> dict[TaskType, float]:
    return {role.task_type: role.resources.memory_bytes / GIB for role in made.roles}


@pytest.mark.parametrize(
    ("memory", "out_of_memory", "expected"),
    [
        ((64,), [], 8),
        ((64,), [WORKER], 12),
        ((64,), [WORKER, WORKER], 18),
        ((64,), [WORKER, PS, WORKER], 18),
        ((30, 30), [WORKER, WORKER, WORKER], 27),
        ((20, 20), [WORKER, WORKER, WORKER], 18),
        ((16, 0), [WORKER], 8),
        ((64,), [PS], 8),
    ],
)
def test_memory_grows_as_far_as_the_hosts_have_it(
    memory: tuple[int, ...], out_of_memory: list[TaskType], expected: float
) -> None:
    made = plan(
        hosts(*memory), workers=workers(2), resources={"worker": {"memory": 8 * GIB}}, memory_retry=1.5
    )
    grown = with_more_memory(made, hosts(*memory), out_of_memory)
    assert memory_of(grown) == {WORKER: expected}


def test_each_role_grows_by_its_own_deaths() -> None:
    asked: dict[str, Any] = {
        "resources": {"worker": {"memory": 4 * GIB}, "ps": {"memory": 2 * GIB}},
        "memory_retry": 2.0,
    }
    made = plan(hosts(64), strategy=Strategy.PARAMETER_SERVER, workers=workers(1), ps=1, **asked)
    grown = with_more_memory(made, hosts(64), [PS, WORKER, PS])
    assert memory_of(grown) == {TaskType.CHIEF: 0, WORKER: 8, PS: 8}


def test_elastic_run_has_more_memory_rather_than_more_workers() -> None:
    cluster = hosts(16, 16)
    made = plan(cluster, workers=workers(1, 4), resources={"worker": {"memory": 8 * GIB}}, memory_retry=1.5)
    assert made.num_workers == 4
    grown = fitted(with_more_memory(made, cluster, [WORKER]), cluster)
    assert (grown.num_workers, memory_of(grown)) == (2, {WORKER: 12})


def test_without_a_factor_nothing_grows() -> None:
    made = plan(hosts(64), resources={"worker": {"memory": 8 * GIB}})
    assert with_more_memory(made, hosts(64), [WORKER]) is made


def test_growth_is_told() -> None:
    made = plan(hosts(64), resources={"worker": {"memory": 8 * GIB}}, memory_retry=1.5)
    grown = with_more_memory(made, hosts(64), [WORKER])
    assert (
        describe_growth(made, grown, WORKER) == "asks for 12 GiB of memory for each worker instead of 8 GiB"
    )
    assert describe_growth(made, made, WORKER) == (
        "asks for 8 GiB of memory for each worker as before: no host has room for more"
    )
    assert describe_growth(made, grown, PS) is None
