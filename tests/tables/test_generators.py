"""Around each public call: generators move as plain Keras moves them, and equally in all workers.

So do variables. A process run for each cluster has all calls, and the cells look at what it has returned.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

_OF_MODELS = (
    *("fit", "evaluate", "predict", "fit again", "fit of arrays", "evaluate arrays"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)
CALLS = (
    *(f"{model} {call}" for model in ("stacked", "own") for call in _OF_MODELS),
    *("report", "note", "save", "train_steps", "restore"),
)
CLUSTERS = [
    Cluster(**where, keras=keras)  # type: ignore[arg-type]
    for keras in ("3", "legacy")
    for where in (
        {},
        {"strategy": "mirrored", "devices": 2},
        {"strategy": "multi_worker_mirrored", "workers": 2},
    )
]


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function("tests.support.generator_functions:around_each_call", cluster, timeout_s=900)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("way", ["scope", "ctx"])
def test_call_moves_generators_and_variables_as_plain_keras(way: str, cluster: Cluster, call: str) -> None:
    for task in run(cluster):
        plain, found = (
            {
                name.rpartition("/")[2]: value
                for name, value in task.values.items()
                if name.startswith(f"{one}/{call}/")
            }
            for one in ("plain", way)
        )
        assert found == plain, task.name
        if way == "ctx" and call in ("train_steps", "restore"):
            continue  # plain Keras trains nothing here
        variables, wanted = (task.arrays[f"{one}/{call}/variables"] for one in (way, "plain"))
        np.testing.assert_allclose(variables, wanted, rtol=1e-3, atol=1e-4, err_msg=task.name)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_workers_have_the_same_generators_and_variables_after_each_call(cluster: Cluster) -> None:
    chief, *others = run(cluster)
    for task in others:
        assert task.values == chief.values
        for name, values in task.arrays.items():
            np.testing.assert_array_equal(values, chief.arrays[name], err_msg=name)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_tables_change_in_the_steps_that_train_alone(cluster: Cluster) -> None:
    local = cluster.devices or 1
    for task in run(cluster):
        counts = task.values["tables"]
        assert counts == {way: counts["plain"] * (1 if way == "plain" else local) for way in counts}
