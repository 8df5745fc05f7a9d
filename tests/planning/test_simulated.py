"""Plans for clusters that are described, and what is said of TensorFlow's own cost there."""

from __future__ import annotations

import json

import pytest

from raydist.errors import ClusterError, SpecError
from raydist.planning.describe import ClusterCost, cluster_cost, describe_plan
from raydist.planning.inventory import SIMULATED_EXAMPLE, simulated_inventory
from raydist.spec.job import Strategy
from tests.planning.plans import plan, workers
from tests.support.counting import num_calls


def cost_of(num_workers: int, **options: object) -> ClusterCost:
    hosts = simulated_inventory("simulated:hosts=100,cpus=16")
    cost = cluster_cost(plan(hosts, workers=workers(num_workers), **options))
    assert cost is not None
    return cost


def test_hosts_are_as_described() -> None:
    inventory = simulated_inventory(SIMULATED_EXAMPLE)
    assert len(inventory.hosts) == 1250
    (kind,) = {(one.num_cpus, one.num_gpus, one.num_tpus, one.memory_bytes) for one in inventory.hosts}
    assert kind == (8.0, 8, 0.0, 64 << 30)


def test_what_does_not_fit_there_is_refused() -> None:
    with pytest.raises(ClusterError, match="a simulated cluster has host-0"):
        plan(simulated_inventory("simulated:hosts=2,cpus=2"), workers=workers(5))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("simulated:", "address has ''"),
        ("simulated:hosts=2,disks=4", "address has 'disks=4'"),
        ("simulated:hosts=2,hosts=4", "address has 'hosts=4'"),
        ("simulated:hosts=0", "hosts=0; write a whole number from 1"),
        ("simulated:hosts=2,cpus=half", "cpus=half; write a whole number from 1"),
        ("simulated:hosts=2,memory=much", "memory of the simulated hosts is 'much'"),
    ],
)
def test_mistakes_are_told(address: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        simulated_inventory(address)
    assert said in str(raised.value)


def test_cost_is_what_tensorflow_was_seen_to_open() -> None:
    assert cost_of(4).connections == 7
    servers = cost_of(2, strategy=Strategy.PARAMETER_SERVER, ps=2)
    assert (servers.connections, servers.num_ps_hosts) == (13, 2)
    assert (cost_of(4).ring_steps, servers.ring_steps) == (6, None)


def test_tf_config_that_is_too_large_for_other_processes_is_told() -> None:
    assert "Linux" not in cost_of(1000).sentences()[0]
    hosts = simulated_inventory(SIMULATED_EXAMPLE)
    many = cluster_cost(plan(hosts, workers=workers(10_000)))
    assert "Linux limits a variable to 131.1 kB" in many.sentences()[0]


def test_tasks_outside_of_tensorflows_cluster_do_not_change_its_cost() -> None:
    assert cost_of(4, data_workers=2, evaluator=True) == cost_of(4)


def test_most_connections_are_those_of_the_task_that_has_most() -> None:
    assert cost_of(4).most_connections == 4  # worker/0: three come to it, and one goes to worker/3
    servers = {"strategy": Strategy.PARAMETER_SERVER}
    assert cost_of(8, ps=2, **servers).most_connections == 18  # ps/0
    assert cost_of(1, ps=4, **servers).most_connections == 9  # worker/0


def test_plan_of_one_host_costs_nothing() -> None:
    alone = plan(simulated_inventory("simulated:hosts=1"), strategy=Strategy.MULTI_WORKER_MIRRORED)
    made = plan(simulated_inventory("simulated:hosts=1"))
    assert cluster_cost(made) is cluster_cost(alone) is None
    assert describe_plan(made)["cluster_cost"] is None


def test_plan_takes_as_much_for_each_task_in_any_cluster() -> None:
    counts = []
    for num_tasks in (1000, 2000):
        address = f"simulated:hosts={num_tasks // 8},cpus=8,gpus=8"

        def describe(address: str = address, num_tasks: int = num_tasks) -> None:
            made = plan(
                simulated_inventory(address), workers=workers(num_tasks), resources={"worker": {"gpus": 1}}
            )
            json.dumps(describe_plan(made))

        counts.append(num_calls(describe) / num_tasks)
    small, large = counts
    assert large <= 1.1 * small
