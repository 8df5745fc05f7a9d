from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import ClusterError, SpecError
from raydist.planning.capacity import matches, num_fitting, why_not
from raydist.planning.describe import describe_hosts
from raydist.planning.inventory import Host, Inventory
from raydist.spec.job import Strategy
from raydist.spec.tasks import Resources, TaskType
from tests.planning.plans import LAPTOP, plan, workers

GIB = 1 << 30
BIG = Host(
    name="big",
    num_cpus=8,
    num_gpus=2,
    memory_bytes=32 * GIB,
    custom={"ssd": 2.0, "accelerator_type:A100": 1.0},
    labels={"zone": "a", "disk": "nvme"},
)
SMALL = Host(name="small", num_cpus=8, memory_bytes=4 * GIB, labels={"zone": "b"})
BOTH = Inventory(hosts=(BIG, SMALL), source="Ray at h:6379")


@pytest.mark.parametrize(
    ("label", "wanted", "is_match"),
    [
        *(("a", "a", True), ("b", "a", False), (None, "a", False), ("b", "!a", True), (None, "!a", True)),
        *(("a", "in(a,b)", True), ("a", "in( b, a )", True), ("c", "in(a,b)", False), (None, "in(a)", False)),
        *(("c", "!in(a,b)", True), ("a", "!in(a,b)", False), (None, "!in(a)", True)),
    ],
)
def test_label_fulfils_an_expression(label: str | None, wanted: str, is_match: bool) -> None:
    assert matches(label, wanted) is is_match


@pytest.mark.parametrize(
    ("asked", "num_big", "num_small", "small_lacks"),
    [
        ({"num_cpus": 3}, 2, 2, None),
        ({"memory_bytes": 8 * GIB}, 4, 0, "needs 8 GiB of memory, has 4 GiB of memory"),
        ({"num_cpus": 0, "custom": (("ssd", 0.5),)}, 4, 0, "needs 0.5 ssd, has 0 ssd"),
        ({"custom": (("accelerator_type:A100", 0.001),)}, 8, 0, "needs A100, has none"),
        ({"num_gpus": 1}, 2, 0, "needs 1 GPU, has 0 GPUs"),
        ({"labels": (("zone", "a"),)}, 8, 0, "needs label zone=a, has b"),
        ({"labels": (("disk", "in(nvme,ssd)"),)}, 8, 0, "needs label disk=in(nvme,ssd), has none"),
        ({"labels": (("zone", "!a"),)}, 0, 8, None),
    ],
)
def test_host_fits_what_it_has(
    asked: dict[str, Any], num_big: int, num_small: int, small_lacks: str | None
) -> None:
    resources = Resources(**asked)
    assert (num_fitting(BIG, resources), num_fitting(SMALL, resources)) == (num_big, num_small)
    assert why_not(SMALL, resources) == small_lacks
    assert (why_not(BIG, resources) is None) is (num_big > 0)


def test_rounding_of_fractions_lacks_nothing() -> None:
    host = Host(name="h", num_cpus=0.7 + 0.1)
    assert host.num_cpus < 0.8
    assert why_not(host, Resources(num_cpus=0.8)) is None


def test_each_role_asks_for_its_own() -> None:
    made = plan(
        BOTH,
        strategy=Strategy.PARAMETER_SERVER,
        workers=workers(2),
        ps=1,
        resources={
            "worker": {"gpus": 1, "memory": 8 * GIB, "resources": {"ssd": 1.0}},
            "ps": {"memory": 2 * GIB},
        },
        accelerator_type="A100",
        label_selector={"zone": "in(a,b)", "ps:zone": "b", "worker:disk": "nvme"},
    )
    asked = {role.task_type: role.resources for role in made.roles}
    assert asked[TaskType.WORKER] == Resources(
        num_gpus=1,
        memory_bytes=8 * GIB,
        custom=(("accelerator_type:A100", 0.001), ("ssd", 1.0)),
        labels=(("disk", "nvme"), ("zone", "in(a,b)")),
    )
    assert asked[TaskType.PS] == Resources(memory_bytes=2 * GIB, labels=(("zone", "b"),))
    assert asked[TaskType.CHIEF] == Resources(labels=(("zone", "in(a,b)"),))
    big, small = (host["roles"] for host in describe_hosts(made))
    assert big["worker"] == {"fits": 2, "lacks": None}
    assert big["ps"] == {"fits": 0, "lacks": "needs label zone=b, has a"}
    assert small["ps"] == {"fits": 1, "lacks": None}
    assert small["worker"]["lacks"] == (
        "needs 1 GPU, has 0 GPUs; needs 8 GiB of memory, has 4 GiB of memory; needs A100, has none; "
        "needs 1 ssd, has 0 ssd; needs label disk=nvme, has none"
    )
    assert str(asked[TaskType.WORKER]) == (
        "1 CPU, 1 GPU, 8 GiB of memory, A100, 1 ssd, disk=nvme, zone=in(a,b)"
    )


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"resources": {"worker": {"memory": 64 * GIB}}},
            r"no host fits a worker: big \(needs 64 GiB of memory, has 32 GiB of memory\), small \(needs .*; "
            r"ask for .* less with --cpus worker=N, --gpus worker=N or --memory worker=SIZE",
        ),
        (
            {"resources": {"worker": {"resources": {"tape": 1.0}}}},
            r"needs 1 tape, has 0 tape.* or --resources worker=tape:N",
        ),
        ({"accelerator_type": "H100"}, r"needs H100, has none.*or --accelerator-type"),
        ({"label_selector": {"zone": "c"}}, r"needs label zone=c, has a.*or --label-selector"),
    ],
)
def test_what_no_host_has_is_refused_with_the_reason(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterError, match=sentence):
        plan(BOTH, **asked)


def test_tasks_that_fit_alone_but_not_together_are_refused() -> None:
    with pytest.raises(ClusterError, match="can never fit") as caught:
        plan(BOTH, workers=workers(5), resources={"worker": {"memory": 8 * GIB}})
    assert "no host fits" not in str(caught.value)
    assert plan(BOTH, workers=workers(4), resources={"worker": {"memory": 8 * GIB}}).num_workers == 4


def test_embedded_ray_has_the_resources_that_are_only_names() -> None:
    host = Host(name="this machine", num_cpus=2, memory_bytes=16 * GIB)
    laptop = Inventory(hosts=(host,), is_embedded=True)
    made = plan(laptop, workers=workers(2), resources={"worker": {"resources": {"ssd": 1.0, "part": 0.75}}})
    assert made.embedded_resources == {"ssd": 2.0, "part": 2}
    assert plan(laptop, resources={"worker": {"memory": GIB}}).embedded_resources == {"memory": 16.0 * GIB}
    assert plan(LAPTOP).embedded_resources == {}
    assert describe_hosts(made)[0]["roles"]["worker"] == {"fits": 2, "lacks": None}
    with pytest.raises(ClusterError, match=r"this machine \(needs A100, has none\)"):
        plan(laptop, accelerator_type="A100")


def test_memory_that_could_not_grow_is_a_mistake() -> None:
    with pytest.raises(SpecError, match=r"memory_retry is 1.5x, but no task reserves memory.*8GiB"):
        plan(BOTH, memory_retry=1.5)
