"""Data workers are a role of their own, in nobody's cluster; all tasks are told the dispatcher's address."""

from __future__ import annotations

import pytest

from raydist.errors import ClusterError, SpecError
from raydist.planning.assignment import make_assignments, placeholder_addresses, tf_config
from raydist.planning.describe import describe_plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskType
from tests.planning.plans import LAPTOP, cluster, plan, workers

NAMES = ["worker/0", "worker/1", "data-worker/0", "data-worker/1"]


def test_data_workers_follow_the_workers_and_have_no_gpu() -> None:
    made = plan(
        cluster((16, 4)),
        workers=workers(2),
        data_workers=2,
        resources={"data-worker": {"cpus": 3.0}, "worker": {"gpus": 2}},
    )
    assert [str(task) for task in made.tasks] == NAMES
    role = made.roles[-1]
    assert (role.task_type, role.resources.num_cpus) == (TaskType.DATA_WORKER, 3.0)
    assert role.resources.num_gpus == 0
    assert str(role) == "2 data-workers (3 CPUs each)"


def test_embedded_ray_has_room_for_them() -> None:
    assert plan(LAPTOP, workers=workers(2), data_workers=3).embedded_cpus == 5


def test_too_many_are_refused_with_their_option() -> None:
    with pytest.raises(ClusterError, match=r"2 data-workers .* or for less with .* or --cpus data-worker=N"):
        plan(cluster((4, 0)), workers=workers(2), data_workers=2, resources={"data-worker": {"cpus": 2.0}})


@pytest.mark.parametrize("num_workers", [1, 2])
def test_only_training_tasks_are_in_the_cluster_and_all_know_the_dispatcher(num_workers: int) -> None:
    made = plan(workers=workers(num_workers), data_workers=2)
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r")
    by_name = {str(task): assignment for task, assignment in assignments.items()}
    assert {each.data_service for each in by_name.values()} == {"data-worker-0:0"}
    assert [each.address for each in by_name.values()][-2:] == ["data-worker-0:0", "data-worker-1:0"]
    assert [name for name, each in by_name.items() if each.is_chief] == ["worker/0"]
    assert {each.num_workers for each in by_name.values()} == {num_workers}
    spec = by_name["worker/0"].cluster_spec
    assert "data-worker" not in spec.as_dict()
    assert tf_config(spec, by_name["data-worker/0"].task) is None
    assert [each["tf_config"] for each in describe_plan(made)["tasks"]][-2:] == [None, None]


def test_without_data_workers_there_is_no_dispatcher() -> None:
    made = plan(workers=workers(2))
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r")
    assert {each.data_service for each in assignments.values()} == {None}


def test_parameter_servers_have_them_outside_of_their_cluster() -> None:
    made = plan(strategy=Strategy.PARAMETER_SERVER, workers=workers(1), ps=1, data_workers=1)
    assignments = make_assignments(made, placeholder_addresses(made), attempt=0, run_uri="/r")
    assert [str(each) for each in assignments] == ["chief/0", "worker/0", "ps/0", "data-worker/0"]
    assert {each.data_service for each in assignments.values()} == {"data-worker-0:0"}
    assert "data-worker" not in next(iter(assignments.values())).cluster_spec.as_dict()


def test_fewer_than_none_are_refused() -> None:
    with pytest.raises(SpecError, match="data_workers is -1; need at least 0"):
        plan(data_workers=-1)
