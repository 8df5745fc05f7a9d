"""Room for Ray Data beside the tasks, without which nothing would ever be read."""

from __future__ import annotations

import dataclasses

import pytest

from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.fitting import less_data_room, with_data_room
from tests.planning.plans import cluster, plan, workers


def test_plan_with_a_free_cpu_is_left_alone() -> None:
    made = plan(cluster((3, 0)), workers=workers(2))
    assert with_data_room(made) == made


def test_tasks_that_take_every_cpu_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"2 workers \(1 CPU each\) leave none of the 2 CPUs"):
        with_data_room(plan(cluster((2, 0)), workers=workers(2)))


def test_cluster_that_can_grow_is_waited_for() -> None:
    made = plan(cluster((2, 0), can_grow=True), workers=workers(2))
    assert with_data_room(made) == made


def test_host_is_found_that_the_tasks_leave_a_cpu() -> None:
    made = plan(cluster((4, 0), (1, 0)), workers=workers(1), resources={"worker": {"cpus": 4}})
    assert with_data_room(made) == made
    assert [host.num_cpus for host in less_data_room(made.inventory, made.roles).hosts] == [4, 0]


def test_parameter_server_is_refused_with_what_works() -> None:
    with pytest.raises(UnsupportedError, match=r"give ctx\.fit a function that reads the files"):
        with_data_room(plan(cluster((8, 0)), ps=1, workers=workers(2)))


def test_embedded_ray_gets_a_cpu_more() -> None:
    made = plan(dataclasses.replace(cluster((2, 0)), is_embedded=True), workers=workers(2))
    assert with_data_room(made).embedded_cpus == 3
