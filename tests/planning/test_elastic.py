from __future__ import annotations

import dataclasses

import pytest

from raydist.planning.assignment import make_assignments
from raydist.planning.fitting import avoiding, avoiding_unfit, fitted, resized, room_beside
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy, WorkerRange
from tests.support.fakes import make_plan


def elastic(minimum: int, maximum: int, *, now: int, strategy: Strategy | None = None) -> Plan:
    workers = WorkerRange(minimum=minimum, maximum=maximum)
    plan = make_plan(workers=now, strategy=strategy or Strategy.MULTI_WORKER_MIRRORED)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, workers=workers))


def hosts(*num_cpus: float) -> Inventory:
    return Inventory(
        hosts=tuple(
            Host(name=f"h{index}", node_id=f"n{index}", num_cpus=number)
            for index, number in enumerate(num_cpus)
        )
    )


@pytest.mark.parametrize(
    ("free", "num_workers"),
    [
        (hosts(8), 4),
        (hosts(2, 1), 3),
        (hosts(2), 2),
        (hosts(1), 2),  # the fewest are waited for
        (hosts(), 2),
        (hosts(0.5, 0.5, 2), 2),  # a task has to fit on one host
    ],
)
def test_attempt_takes_what_there_is(free: Inventory, num_workers: int) -> None:
    assert fitted(elastic(2, 4, now=2), free).num_workers == num_workers


def test_other_roles_take_their_room_first() -> None:
    plan = elastic(1, 4, now=1, strategy=Strategy.PARAMETER_SERVER)  # chief/0 and ps/0 beside them
    assert fitted(plan, hosts(5)).num_workers == 3


@pytest.mark.parametrize(("free", "num_workers"), [(hosts(), 2), (hosts(1), 3), (hosts(1, 5), 4)])
def test_room_is_counted_beside_the_workers_that_train(free: Inventory, num_workers: int) -> None:
    assert room_beside(elastic(2, 4, now=2), free) == num_workers


def test_resized_plan_has_as_many_tasks() -> None:
    assert [str(task) for task in resized(elastic(1, 3, now=1), 3).tasks] == [
        "worker/0",
        "worker/1",
        "worker/2",
    ]


@pytest.mark.parametrize(
    ("inventory", "avoided"),
    [
        (hosts(2, 2), ("n0",)),
        (hosts(2, 1), ()),  # the others are too few
        (hosts(2), ()),
    ],
)
def test_bad_host_is_avoided_where_others_have_room(inventory: Inventory, avoided: tuple[str, ...]) -> None:
    assert avoiding(make_plan(workers=2), inventory, frozenset({"h0"})).avoid == avoided


@pytest.mark.parametrize(
    ("inventory", "avoided", "use"),
    [
        pytest.param(hosts(2, 2, 2), ("n0", "n1"), "does without host h1, which", id="room"),
        pytest.param(hosts(2, 2, 1), ("n0",), "may use host h1, as the others have no room", id="no-room"),
        pytest.param(hosts(2, 1, 0), (), "may use host h1, as the others have no room", id="none-at-all"),
    ],
)
def test_unfit_host_is_left_out_where_others_have_room(
    inventory: Inventory, avoided: tuple[str, ...], use: str
) -> None:
    plan = avoiding_unfit(
        make_plan(workers=2), inventory, frozenset({"h0"}), problems={"h1": "disk: 0.1 of 40.0 GiB free"}
    )
    assert plan.avoid == avoided
    [told] = plan.uses_of_unfit_hosts
    assert told.startswith(use)
    assert told.endswith("(disk: 0.1 of 40.0 GiB free)")


@pytest.mark.parametrize(
    ("minimum", "inventory", "avoided", "num_workers"),
    [
        pytest.param(1, hosts(1, 1), ("n1",), 1, id="fewer-workers"),
        pytest.param(1, hosts(2, 1), ("n1",), 2, id="as-many"),
        pytest.param(2, hosts(1, 1), (), 2, id="below-the-fewest"),
    ],
)
def test_elastic_run_has_fewer_workers_rather_than_one_on_an_unfit_host(
    minimum: int, inventory: Inventory, avoided: tuple[str, ...], num_workers: int
) -> None:
    plan = avoiding_unfit(elastic(minimum, 3, now=2), inventory, frozenset(), problems={"h1": "disk: full"})
    assert plan.avoid == avoided
    assert fitted(plan, inventory).num_workers == num_workers


def test_room_on_a_host_that_the_attempt_avoids_does_not_count() -> None:
    plan = avoiding(elastic(1, 3, now=1), hosts(1, 1, 1), frozenset({"h1"}))
    assert room_beside(plan, hosts(0, 1, 1)) == 2


def test_all_tasks_know_how_many_workers_may_come_later() -> None:
    plan = resized(elastic(1, 4, now=1, strategy=Strategy.PARAMETER_SERVER), 3)
    known = {task: f"{task.path_name}:1" for task in plan.tasks if str(task) != "worker/1"}  # not there yet
    assignments = make_assignments(plan, known, attempt=0, run_uri="runs/r")
    assert assignments.keys() == known.keys()
    assert {(one.num_workers, one.num_slots) for one in assignments.values()} == {(3, 4)}
    fenced = dataclasses.replace(plan, job=dataclasses.replace(plan.job, fence=True))
    assert fenced.num_slots == 3
