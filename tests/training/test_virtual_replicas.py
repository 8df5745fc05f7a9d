"""Virtual replicas: what is trained has the same bits, however many workers and devices compute them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.virtual_functions"
PROGRAMS = ("convnet", "few_examples", "accumulated", "mixed_float16", "recommender", "wide")
# A model's step is traced once for each replica, which is most of what the others take.
QUICK = ("few_examples",)
LOOPS = ("returned", "steps", "steps_with_loss_object")
# With 5 replicas on 3 workers: parts of unequal size, and large sums that are exchanged in chunks.
UNEQUAL = ("accumulated", "mixed_float16", "recommender", "wide")
CLUSTERS = {
    "1 worker": Cluster(),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "3 workers": Cluster(strategy="multi_worker_mirrored", workers=3),
    "3 to 1": Cluster(strategy="multi_worker_mirrored", workers=2, shares=(3, 1)),
    "2 devices": Cluster(strategy="mirrored", devices=2),
}
EPOCHS = 2


@functools.cache
def run(name: str, keras: str, num_replicas: int, programs: tuple[str, ...]) -> dict[str, list[TaskProcess]]:
    """Runs the programs one after another in the same processes, and draws random numbers at last."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        program: (f"{FUNCTIONS}:{program}", {}) for program in (*programs, "draws")
    }
    cluster = replace(CLUSTERS[name], keras=keras)
    options = {"virtual_replicas": num_replicas, "export": False}
    return run_in_turn(calls, cluster, timeout_s=500, job_options=options)


def differences(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> list[str]:
    """Returns what has not the same bytes, and by how much it is off."""
    if found.keys() != expected.keys():
        return [f"{found.keys() ^ expected.keys()} in one of them only"]
    return [
        f"{name} by {np.max(np.abs(np.subtract(found[name], value, dtype='float64')))}"
        for name, value in expected.items()
        if found[name].tobytes() != value.tobytes() or found[name].dtype != value.dtype
    ]


def check_equal(name: str, keras: str, num_replicas: int, programs: tuple[str, ...]) -> None:
    expected, found = (run(one, keras, num_replicas, programs) for one in ("1 worker", name))
    different = {
        f"{program} {task.name}": wrong
        for program in programs
        for task in found[program]
        if (wrong := differences(task.arrays, expected[program][0].arrays))
    }
    assert different == {}


def check_trained(keras: str, num_replicas: int, programs: tuple[str, ...]) -> None:
    """Equal bytes say nothing of what is not there, or has not been trained."""
    for program in (one for one in programs if one not in LOOPS):
        [task] = run("1 worker", keras, num_replicas, programs)[program]
        assert len(task.arrays) > 10, program
        assert all(np.isfinite(value).all() for value in task.arrays.values()), program
        history = [value for name, value in task.arrays.items() if name.startswith("history/")]
        assert {len(value) for value in history} == {EPOCHS}


def drawn(name: str, keras: str, num_replicas: int, programs: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns what all tasks' replicas draw."""
    tasks = run(name, keras, num_replicas, programs)["draws"]
    return {key: value for task in tasks for key, value in task.arrays.items()}


def check_draws(name: str, keras: str, num_replicas: int, programs: tuple[str, ...]) -> None:
    """Each replica draws other numbers each time, and the same ones on each cluster."""
    found = drawn(name, keras, num_replicas, programs)
    kinds = ("dropout", "translation", "normal", "generator")
    assert found.keys() == {
        f"{kind}/{time}/{replica}" for kind in kinds for time in range(2) for replica in range(num_replicas)
    }
    for kind in kinds:
        own = [value.tobytes() for key, value in found.items() if key.startswith(kind)]
        assert len(set(own)) == 2 * num_replicas, kind
    assert differences(found, drawn("1 worker", keras, num_replicas, programs)) == []


@pytest.mark.exhaustive("others", "legacy", covered_by="[3-5-3 workers-unequal]")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("keras", "num_replicas", "name", "programs"),
    [
        ("3", 4, "2 workers", (*QUICK, *LOOPS)),
        ("3", 4, "2 devices", (*QUICK, *LOOPS)),
        ("3", 4, "3 to 1", (*QUICK, *LOOPS)),
        ("3", 5, "3 workers", UNEQUAL),
        ("3", 6, "3 workers", PROGRAMS),
        ("legacy", 6, "3 workers", PROGRAMS),
        ("legacy", 4, "2 workers", (*PROGRAMS, "returned")),
    ],
    ids=lambda value: (
        {PROGRAMS: "others", UNEQUAL: "unequal"}.get(value, "loops") if isinstance(value, tuple) else value
    ),
)
def test_results_have_the_bits_of_one_worker(
    keras: str, num_replicas: int, name: str, programs: tuple[str, ...]
) -> None:
    check_trained(keras, num_replicas, programs)
    check_equal(name, keras, num_replicas, programs)
    check_draws(name, keras, num_replicas, programs)
