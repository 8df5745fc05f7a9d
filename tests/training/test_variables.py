"""Variables answer under every strategy as they do on one device."""

from __future__ import annotations

import functools

import pytest

from tests.support.processes import Cluster, run_function

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.variable_functions"


@functools.cache
def answers_on_one_device(keras: str) -> dict[str, str]:
    [task] = run_function(f"{FUNCTIONS}:read_all", Cluster(keras=keras))
    return task.values


@pytest.mark.exhaustive(
    "1+1",
    "central_storage",
    "keraslegacy",
    covered_by="[mirrored-2-keras3], whose variables are of another class",
)
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="mirrored", devices=2),
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="central_storage", devices=2),
        Cluster(strategy="parameter_server", workers=1, ps=1),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
        Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"),
        Cluster(strategy="central_storage", devices=2, keras="legacy"),
    ],
    ids=str,
)
def test_variables_are_converted_as_on_one_device(cluster: Cluster) -> None:
    expected = answers_on_one_device(cluster.keras)
    assert expected["iterations int outside"] == "int 3"
    assert expected["variable float in the scope"] == "float 0.0"
    for task in run_function(f"{FUNCTIONS}:read_all", cluster):
        other = {name: one for name, one in task.values.items() if one != expected[name]}
        assert other == {}


def test_a_metrics_variable_that_one_worker_prints_waits_for_nobody() -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2)
    first, second = run_function(f"{FUNCTIONS}:prints_alone", cluster)
    assert (first.values["printed"], second.values["printed"]) == ("<Variable", "")
