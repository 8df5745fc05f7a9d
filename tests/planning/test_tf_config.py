from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from raydist.planning.assignment import (
    assignment_environment,
    cluster_spec,
    make_assignments,
    placeholder_addresses,
    tf_config,
)
from raydist.planning.inventory import Host, Inventory
from raydist.planning.make_plan import make_plan
from raydist.planning.plan import Plan
from raydist.spec.job import EntryPoint, JobSpec, Strategy, WorkerRange
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.resolution import Origin
from raydist.spec.tasks import ClusterSpec, TaskId, TaskType

SINGLE_HOST = [strategy for strategy in Strategy if strategy.is_single_host]
ALL_TASKS = ("evaluator/0", "ps/0", "worker/1", "worker/0", "chief/0", "worker/10", "worker/2")


def addresses(*tasks: str) -> dict[TaskId, str]:
    return {TaskId.parse(task): f"[::1]:{task.replace('/', '')}" for task in tasks}


def plan(num_workers: int, **fields: object) -> Plan:
    job = JobSpec(
        name="run",
        entry_point=EntryPoint(file="a.py", function="train"),
        workers=WorkerRange(minimum=num_workers, maximum=num_workers),
        **fields,  # type: ignore[arg-type]
    )
    inventory = Inventory(hosts=(Host(name="h", num_cpus=16, num_gpus=4, num_tpus=4),))
    return make_plan(job, {option.name: Origin.BUILT_IN for option in OPTIONS}, inventory)


@pytest.mark.parametrize("strategy", SINGLE_HOST, ids=lambda strategy: strategy.value)
def test_single_host_strategy_has_no_cluster_and_no_tf_config(strategy: Strategy) -> None:
    spec = cluster_spec(strategy, addresses("worker/0"))
    assert spec == ClusterSpec()
    assert tf_config(spec, TaskId.parse("worker/0")) is None


def test_multi_worker_mirrored_has_workers_only_in_the_order_of_their_indices() -> None:
    spec = cluster_spec(Strategy.MULTI_WORKER_MIRRORED, addresses(*ALL_TASKS))
    workers = ["[::1]:worker0", "[::1]:worker1", "[::1]:worker2", "[::1]:worker10"]
    assert spec.as_dict() == {"worker": workers}


def test_parameter_server_has_all_but_the_evaluator() -> None:
    spec = cluster_spec(Strategy.PARAMETER_SERVER, addresses(*ALL_TASKS))
    assert [task_type for task_type, _ in spec.jobs] == [TaskType.CHIEF, TaskType.WORKER, TaskType.PS]


def test_evaluator_is_told_the_cluster_that_it_is_not_part_of() -> None:
    spec = cluster_spec(Strategy.PARAMETER_SERVER, addresses("chief/0", "worker/0", "ps/0", "evaluator/0"))
    assert json.loads(tf_config(spec, TaskId.parse("evaluator/0")) or "") == {
        "cluster": {"chief": ["[::1]:chief0"], "worker": ["[::1]:worker0"], "ps": ["[::1]:ps0"]},
        "task": {"type": "evaluator", "index": 0},
    }


@pytest.mark.parametrize("num_workers", [2, 3, 12])
def test_each_tasks_tf_config_is_json_with_the_same_cluster_and_its_own_index(num_workers: int) -> None:
    made = plan(num_workers)
    assignments = make_assignments(made, placeholder_addresses(made), attempt=1, run_uri="/runs/run")
    texts = [assignment_environment(assignment)["TF_CONFIG"] for assignment in assignments.values()]
    cluster = {"worker": [f"worker-{index}:0" for index in range(num_workers)]}
    assert [json.loads(text or "") for text in texts] == [
        {"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(num_workers)
    ]


def test_own_parts_of_many_assignments_are_small() -> None:
    made = plan(1000, resources={"worker": {"cpus": 0.01}})
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r")
    common = assignments[made.tasks[0]]
    own = {task: pickle.dumps(one.own_part(common)) for task, one in assignments.items()}
    for task, assignment in assignments.items():
        assert dataclasses.replace(common, **pickle.loads(own[task])) == assignment
    assert sum(map(len, own.values())) / 1000 < 250
    assert len(pickle.dumps(common)) > 10_000  # the addresses


def test_assignment_tells_a_worker_its_part() -> None:
    made = plan(2, resources={"worker": {"cpus": 2.0}})
    assignment = make_assignments(made, placeholder_addresses(made), attempt=3, run_uri="/runs/run")[
        TaskId(task_type=TaskType.WORKER, index=1)
    ]
    assert (assignment.strategy, assignment.num_workers, assignment.attempt) == (made.strategy, 2, 3)
    assert (assignment.address, assignment.num_cpus, assignment.is_chief) == ("worker-1:0", 2.0, False)


def test_each_task_under_parameter_server_has_its_tf_config_and_knows_how_many_there_are() -> None:
    made = plan(3, ps=2, evaluator=True, resources={"worker": {"gpus": 1}})
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r").values()
    told = [json.loads(assignment_environment(each)["TF_CONFIG"] or "") for each in assignments]
    assert [f"{config['task']['type']}/{config['task']['index']}" for config in told] == [
        *("chief/0", "worker/0", "worker/1", "worker/2", "ps/0", "ps/1", "evaluator/0")
    ]
    assert all(config["cluster"] == told[0]["cluster"] for config in told)
    counts = {(each.num_workers, each.num_ps, each.gpus_per_worker) for each in assignments}
    assert counts == {(3, 2, 1)}


def test_only_the_evaluator_has_no_address_and_only_the_chief_is_chief() -> None:
    made = plan(1, ps=1, evaluator=True)
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r").values()
    assert {str(each.task): (each.address, each.is_chief) for each in assignments} == {
        "chief/0": ("chief-0:0", True),
        "worker/0": ("worker-0:0", False),
        "ps/0": ("ps-0:0", False),
        "evaluator/0": (None, False),
    }


def test_evaluator_beside_workers_is_not_in_their_cluster_and_not_their_chief() -> None:
    made = plan(2, evaluator=True)
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r").values()
    assert {str(each.task): (each.address, each.is_chief) for each in assignments} == {
        "worker/0": ("worker-0:0", True),
        "worker/1": ("worker-1:0", False),
        "evaluator/0": (None, False),
    }
    assert {each.num_workers for each in assignments} == {2}
    *_, evaluator = assignments
    assert json.loads(assignment_environment(evaluator)["TF_CONFIG"] or "") == {
        "cluster": {"worker": ["worker-0:0", "worker-1:0"]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_single_host_assignment_has_no_address_and_removes_tf_config() -> None:
    made = plan(1, strategy=Strategy.MIRRORED, resources={"worker": {"gpus": 0}})
    (assignment,) = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r").values()
    assert (assignment.address, assignment.devices, assignment.is_chief) == (None, 2, True)
    assert assignment_environment(assignment) == {"TF_CONFIG": None}


def test_tpu_of_the_tasks_own_host_is_called_local() -> None:
    made = plan(1)
    (assignment,) = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r").values()
    assert (assignment.strategy, assignment.tpu_name) == (Strategy.TPU, "local")
