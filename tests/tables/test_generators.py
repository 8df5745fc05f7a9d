"""Around each public call: generators move as plain Keras moves them, and equally in all workers.

So do variables. A process run for each cluster has all calls, and the cells look at what it has returned.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLUSTERS = (
    Cluster(strategy="multi_worker_mirrored", workers=2),
    Cluster(strategy="mirrored", devices=2),
    Cluster(strategy="mirrored", devices=2, keras="legacy"),
    Cluster(keras="legacy"),
)
# Of which plain Keras has no counterpart.
OF_CONTEXT = ("train_steps", "restore")


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function("tests.support.generator_functions:around_each_call", cluster, timeout_s=900)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("way", ["scope", "ctx"])
def test_each_call_moves_generators_and_variables_as_plain_keras(way: str, cluster: Cluster) -> None:
    for task in run(cluster):
        plain, found = (_of_way(task.values, one) for one in ("plain", way))
        assert found == plain, task.name
        variables, wanted = (_of_way(task.arrays, one) for one in (way, "plain"))
        for name in wanted:
            if way == "ctx" and name.partition("/")[0] in OF_CONTEXT:
                continue
            message = f"{task.name}: {name}"
            np.testing.assert_allclose(variables[name], wanted[name], rtol=1e-3, atol=1e-4, err_msg=message)


def _of_way(values: Mapping[str, Any], way: str) -> dict[str, Any]:
    """Returns by call and generator what a way has."""
    return {name.removeprefix(f"{way}/"): one for name, one in values.items() if name.startswith(f"{way}/")}


def test_workers_have_the_same_generators_and_variables_after_each_call() -> None:
    chief, other = run(CLUSTERS[0])
    assert other.values == chief.values
    for name, values in other.arrays.items():
        np.testing.assert_array_equal(values, chief.arrays[name], err_msg=name)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_tables_change_in_the_steps_that_train_alone(cluster: Cluster) -> None:
    local = cluster.devices or 1
    for task in run(cluster):
        counts = task.values["tables"]
        assert counts == {way: counts["plain"] * (1 if way == "plain" else local) for way in counts}
