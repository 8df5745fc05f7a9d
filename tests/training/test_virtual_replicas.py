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
PROGRAMS = (
    *("convnet", "few_examples", "accumulated", "mixed_float16", "transformer", "lstm", "contrastive"),
    *("dcgan", "recommender", "wide"),
)
# A model's step is traced once for each replica, which is most of what the others take.
QUICK = ("few_examples",)
CLUSTERS = {
    "1 worker": Cluster(),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "3 workers": Cluster(strategy="multi_worker_mirrored", workers=3),
    "4 workers": Cluster(strategy="multi_worker_mirrored", workers=4),
    "2 devices": Cluster(strategy="mirrored", devices=2),
}
EPOCHS = 2
SLOW = pytest.mark.slow  # takes two minutes on each cluster


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
    for program in programs:
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


@pytest.mark.parametrize("name", ["2 workers", pytest.param("2 devices", marks=SLOW)])
def test_results_have_the_bits_of_one_worker(name: str) -> None:
    check_trained("3", 4, QUICK)
    check_equal(name, "3", 4, QUICK)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("name", "keras"),
    [("2 workers", "3"), *(pytest.param(name, "legacy", marks=SLOW) for name in ("2 workers", "2 devices"))],
)
def test_numbers_that_steps_return_have_the_bits_of_one_worker(name: str, keras: str) -> None:
    check_equal(name, keras, 4, ("returned",))


@pytest.mark.parametrize("name", ["2 workers", pytest.param("2 devices", marks=SLOW)])
def test_each_replica_draws_numbers_of_its_own_wherever_it_is_computed(name: str) -> None:
    check_draws(name, "3", 4, QUICK)


@SLOW
@pytest.mark.parametrize("num_replicas", [4, 5])
def test_large_sums_are_exchanged_in_chunks_and_have_the_bits_of_one_worker(num_replicas: int) -> None:
    check_equal("3 workers", "3", num_replicas, ("wide",))


@SLOW
@pytest.mark.parametrize("loop", ["steps", "steps_with_loss_object"])
def test_loop_of_steps_has_the_bits_of_one_worker(loop: str) -> None:
    check_equal("2 workers", "3", 4, (loop,))


@pytest.mark.exhaustive(
    "2 devices", "2 workers", "4", "4 workers", "legacy", covered_by="[3-6-3 workers], parts of unequal size"
)
@SLOW
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "1 worker"])
@pytest.mark.parametrize("num_replicas", [4, 6])
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_results_of_each_program_have_the_bits_of_one_worker(
    keras: str, num_replicas: int, name: str
) -> None:
    check_trained(keras, num_replicas, PROGRAMS)
    check_equal(name, keras, num_replicas, PROGRAMS)
    check_draws(name, keras, num_replicas, PROGRAMS)
