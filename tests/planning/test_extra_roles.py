from __future__ import annotations

import pytest

from raydist.errors import ClusterError
from raydist.planning.assignment import command_environment
from raydist.planning.describe import describe_plan
from raydist.planning.fitting import fitted
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy, WorkerRange
from raydist.spec.tasks import ExtraRole, Resources
from tests.planning.plans import LAPTOP, cluster, plan, workers

SERVER = ExtraRole(name="features", command=("serve",), num_tasks=2, resources=Resources(num_cpus=2))
ROLES = {"features": SERVER}


def test_role_is_in_no_tf_config() -> None:
    with_role, without = (
        describe_plan(plan(workers=workers(2), **given)) for given in ({"roles": ROLES}, {})
    )
    assert with_role["tasks"] == without["tasks"]
    assert with_role["roles"] == without["roles"]
    assert [(role["name"], role["count"], role["cpus"]) for role in with_role["extra_roles"]] == [
        ("features", 2, 2)
    ]


def test_embedded_ray_has_its_cpus_too() -> None:
    nvme = ExtraRole(name="f", command=("serve",), resources=Resources(custom=(("nvme", 1.0),)))
    made = plan(LAPTOP, workers=workers(2), roles={**ROLES, "f": nvme})
    assert made.embedded_cpus == 2 + 4 + 1
    assert made.embedded_resources == {"nvme": 1.0}


def test_what_never_fits_is_refused_with_the_role_named() -> None:
    with pytest.raises(ClusterError, match=r"2 features \(2 CPUs each\) can never fit.*roles\.features"):
        plan(cluster((4, 0)), workers=workers(1), roles=ROLES)


def test_elastic_run_leaves_room_for_the_role() -> None:
    made = plan(cluster((8, 0)), workers=workers(1, 8), roles=ROLES)
    assert made.num_workers == 4
    assert fitted(made, cluster((6, 0))).num_workers == 2


def on_gpus(*gpus: int, workers_: WorkerRange | None = None, **role: int) -> Plan:
    """Returns a plan on hosts with so many GPUs, one of which is for an extra role."""
    server = ExtraRole(name="f", command=("serve",), resources=Resources(num_gpus=1), **role)
    hosts = cluster(*((8, number) for number in gpus))
    return plan(hosts, roles={"f": server}, **({} if workers_ is None else {"workers": workers_}))


def gpus_of(made: Plan) -> int:
    return made.resources_of(made.tasks[0]).num_gpus


def test_workers_have_the_gpus_that_are_left() -> None:
    assert [gpus_of(on_gpus(*gpus)) for gpus in ((4,), (4, 1), (2, 2), (1,))] == [3, 4, 2, 0]
    assert on_gpus(2).strategy is Strategy.ONE_DEVICE
    several = on_gpus(2, 1, workers_=workers(2))
    assert gpus_of(several) == 1
    fewer = on_gpus(2, workers_=workers(2))
    assert gpus_of(fewer) == 0
    assert "no worker uses a GPU: 2 workers need one each, and Ray at h0:6379 has 1 beside those of f; " in (
        " ".join(fewer.notes)
    )
    none = on_gpus(2, workers_=workers(2), num_tasks=2)
    assert "no worker uses a GPU: Ray at h0:6379 has 2, for f" in none.notes
    with pytest.raises(ClusterError, match=r"2 f \(1 CPU, 1 GPU each\) can never fit"):
        on_gpus(1, num_tasks=2)


def test_many_roles_are_planned_quickly() -> None:
    many = {f"r{i}": ExtraRole(name=f"r{i}", command=("serve",)) for i in range(12)}
    assert plan(cluster((13, 0)), roles=many).num_workers == 1


@pytest.mark.parametrize(("num_gpus", "shown"), [(0, ""), (1, "3")])
def test_command_has_the_jobs_variables_and_its_own(num_gpus: int, shown: str) -> None:
    found = command_environment(
        run="r",
        role="features",
        index=1,
        num_gpus=num_gpus,
        given={"TOKEN": "t", "PATH": "/opt"},
        environ={"TF_CONFIG": "{}", "HOME": "/root", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"},
        python_folder="/venv/bin",
    )
    assert found == {
        **{"TOKEN": "t", "HOME": "/root", "CUDA_VISIBLE_DEVICES": shown, "PATH": "/venv/bin:/opt"},
        **{"RAYDIST_RUN": "r", "RAYDIST_ROLE": "features", "RAYDIST_INDEX": "1"},
    }
