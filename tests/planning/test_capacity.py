from __future__ import annotations

import pytest

from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.capacity import check_fits, check_fits_beside, describe_roles, fits, num_at_once
from raydist.planning.inventory import Host, Inventory
from raydist.spec.tasks import Resources, Role, TaskType
from tests.planning.plans import LAPTOP, cluster

CHIEF, EVALUATOR = Role(task_type=TaskType.CHIEF), Role(task_type=TaskType.EVALUATOR)


def worker(num_tasks: int, cpus: float = 1.0, gpus: int = 0) -> Role:
    resources = Resources(num_cpus=cpus, num_gpus=gpus)
    return Role(task_type=TaskType.WORKER, num_tasks=num_tasks, resources=resources)


def ps(num_tasks: int, cpus: float = 1.0) -> Role:
    return Role(task_type=TaskType.PS, num_tasks=num_tasks, resources=Resources(num_cpus=cpus))


@pytest.mark.parametrize(
    ("hosts", "roles", "is_possible"),
    [
        ([(4, 0)], [CHIEF, worker(2), ps(1)], True),
        ([(4, 0)], [CHIEF, worker(2), ps(1), EVALUATOR], False),
        ([(2, 0), (2, 0)], [CHIEF, worker(2), ps(1)], True),
        ([(2, 0), (2, 0)], [worker(1), ps(1, cpus=3)], False),
        ([(5, 0), (4, 0)], [worker(1, cpus=4), ps(1, cpus=5)], True),
        ([(5, 0), (4, 0)], [worker(1, cpus=5), ps(1, cpus=4)], True),
        ([(6, 0), (4, 0)], [worker(2, cpus=3), ps(2, cpus=2)], True),
        ([(3, 1), (4, 0)], [worker(1, cpus=3, gpus=1), ps(2, cpus=2)], True),
        ([(4, 1), (4, 0)], [CHIEF, worker(1, gpus=1), ps(1, cpus=4)], True),
        ([(4, 1), (4, 0)], [worker(2, gpus=1), ps(1)], False),
        ([(1, 0)], [CHIEF, worker(100, cpus=0), ps(100, cpus=0)], True),
        ([(0.3, 0)], [worker(1, cpus=0.1), ps(2, cpus=0.1)], True),
        ([], [worker(1)], False),
    ],
    ids=[
        "all-on-one",
        "evaluator-too-many",
        "two-hosts",
        "ps-larger-than-a-host",
        "ps-on-the-larger",
        "worker-on-the-larger",
        "smallest-first",
        "ps-beside-the-gpu",
        "ps-away-from-the-gpu",
        "gpus",
        "nothing-asked",
        "fractions",
        "no-host",
    ],
)
def test_tasks_of_mixed_roles_fit_when_each_finds_a_host(
    hosts: list[tuple[float, int]], roles: list[Role], is_possible: bool
) -> None:
    assert fits(cluster(*hosts), roles) is is_possible
    assert fits(cluster(*reversed(hosts)), roles) is is_possible


def test_error_names_what_each_role_was_asked_with() -> None:
    with pytest.raises(ClusterError) as caught:
        check_fits(cluster((4, 1), (2, 0)), [CHIEF, worker(2, gpus=1), ps(2, cpus=2.5), EVALUATOR])
    assert str(caught.value) == (
        "1 chief (1 CPU), 2 workers (1 CPU, 1 GPU each), 2 ps (2.5 CPUs each) and 1 evaluator (1 CPU) can "
        "never fit: Ray at h0:6379 has h0 (4 CPUs, 1 GPU), h1 (2 CPUs, no GPU); ask for fewer tasks, or for "
        "less with --cpus chief=N, --cpus worker=N, --cpus ps=N, --cpus evaluator=N or "
        "--gpus worker=N"
    )


def test_tasks_that_could_share_cores_are_told_the_command_for_it() -> None:
    with pytest.raises(ClusterError) as caught:
        check_fits(cluster((2, 0)), [worker(3)])
    assert str(caught.value) == (
        "3 workers (1 CPU each) can never fit: Ray at h0:6379 has 2 CPUs, no GPU; let them share cores with "
        "a Ray started by `raydist up --num-cpus 3` or `ray start --num-cpus 3`, or with one of the run's "
        "own, --address local; or ask for fewer tasks, or for less with --cpus worker=N"
    )


def test_run_inside_of_a_run_is_told_what_is_free() -> None:
    check_fits_beside(cluster((2, 0)), [worker(2)])
    with pytest.raises(UnsupportedError) as caught:
        check_fits_beside(cluster((1, 0)), [worker(2)])
    assert str(caught.value) == (
        "2 workers (1 CPU each) do not fit beside the run whose task starts them: Ray at h0:6379 has "
        "1 CPU, no GPU free. That run keeps its room until it ends, so this one would wait for ever; make "
        "the cluster larger, or ask for less, in either run, with --cpus worker=N"
    )


def test_all_roles_of_an_embedded_ray_share_its_cores() -> None:
    check_fits(LAPTOP, [CHIEF, worker(13), ps(2)])
    with pytest.raises(ClusterError, match=r"at most 8 logical CPUs per core"):
        check_fits(LAPTOP, [CHIEF, worker(13), ps(2), EVALUATOR])


def test_hosts_that_may_be_added_are_waited_for() -> None:
    check_fits(cluster((1, 0), can_grow=True), [CHIEF, worker(3), ps(2)])


def test_role_is_described_with_the_resources_of_each_task() -> None:
    assert describe_roles([CHIEF]) == "1 chief (1 CPU)"
    assert (
        describe_roles([CHIEF, worker(1), ps(2)]) == "1 chief (1 CPU), 1 worker (1 CPU) and 2 ps (1 CPU each)"
    )


def test_thousand_hosts_are_named_by_the_first_five() -> None:
    hosts = Inventory(hosts=tuple(Host(name=f"h{i}") for i in range(1000)))
    with pytest.raises(ClusterError, match=r"h4 \(1 CPU, no GPU\) and 995 more hosts"):
        check_fits(hosts, [worker(900), ps(200)])


@pytest.mark.parametrize(
    ("hosts", "roles", "expected"),
    [
        ([(4, 0)], [worker(2)], 2),
        ([(4, 0), (3, 0)], [worker(2)], 3),
        ([(4, 0)], [CHIEF, worker(2), ps(1)], 1),
        ([(9, 0)], [CHIEF, EVALUATOR, worker(1)], 3),
        ([(8, 3)], [worker(1, gpus=1)], 3),
        ([(1, 0)], [worker(2)], 1),  # never fits, which another check tells
        ([(1, 0)], [worker(1, cpus=0)], 7),
    ],
)
def test_as_many_runs_go_at_once_as_have_room(
    hosts: list[tuple[float, int]], roles: list[Role], expected: int
) -> None:
    assert num_at_once(cluster(*hosts), roles, most=7) == expected
