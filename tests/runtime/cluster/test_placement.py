from __future__ import annotations

import pytest

from raydist.runtime.cluster.placement import order_bundles
from raydist.spec.tasks import Resources, TaskId, TaskType

CHIEF, WORKER, PS = (TaskId.parse(name) for name in ("chief/0", "worker/0", "ps/0"))
FIRST = {"CPU": 1.0, "memory": 1.0}


def asked(**cpus: float) -> dict[TaskId, Resources]:
    tasks = {"chief": CHIEF, "worker": WORKER, "ps": PS}
    return {tasks[name]: Resources(num_cpus=num_cpus) for name, num_cpus in cpus.items()}


def test_bundles_stand_in_the_order_of_the_tasks_and_hold_what_they_ask_for() -> None:
    resources = {CHIEF: Resources(num_cpus=0.5), WORKER: Resources(num_cpus=2, num_gpus=1, num_tpus=4)}
    assert list(order_bundles(resources, spread=None).items()) == [
        (CHIEF, {"CPU": 0.5}),
        (WORKER, {"CPU": 2.0, "GPU": 1.0, "TPU": 4.0}),
    ]


def test_task_without_resources_has_no_bundle() -> None:
    assert order_bundles(asked(chief=0, worker=1), spread=None) == {WORKER: {"CPU": 1.0}}


@pytest.mark.parametrize(
    ("resources", "bundle_of_ps"),
    [
        pytest.param(asked(chief=1, worker=1, ps=1), FIRST, id="equal"),
        pytest.param(asked(chief=1, worker=1, ps=2), {"CPU": 2.0, "memory": 1.0}, id="larger"),
        pytest.param(asked(chief=1, worker=2, ps=1), {"CPU": 1.0}, id="smaller-than-a-worker"),
    ],
)
def test_spread_tasks_come_first_unless_a_larger_one_might_not_fit_then(
    resources: dict[TaskId, Resources], bundle_of_ps: dict[str, float]
) -> None:
    bundles = order_bundles(resources, spread=TaskType.PS)
    assert list(bundles) == [PS, CHIEF, WORKER]
    assert bundles[PS] == bundle_of_ps
    assert "memory" not in bundles[CHIEF]


def test_memory_is_part_of_the_bundle_and_labels_alone_need_one() -> None:
    resources = {
        CHIEF: Resources(num_cpus=0, labels=(("zone", "a"),)),
        WORKER: Resources(num_cpus=2, memory_bytes=1 << 20, custom=(("ssd", 0.5),)),
    }
    assert order_bundles(resources, spread=None) == {
        CHIEF: {"memory": 1.0},
        WORKER: {"CPU": 2.0, "memory": 1048576.0, "ssd": 0.5},
    }
    assert order_bundles(resources, spread=TaskType.WORKER)[WORKER]["memory"] == 1048577.0
