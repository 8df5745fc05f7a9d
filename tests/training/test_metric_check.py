"""Metrics of the user's own that cannot be added up over replicas are noted, and no others."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTION = "tests.support.metric_functions:own_metrics"
WAYS = ("fit", "evaluate", "own step")
CLUSTERS = {
    "1 device": Cluster(),
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "servers": Cluster(strategy="parameter_server", workers=1, ps=1),
}
WRONG = {"largest": "Largest (", "root_of_batch": "root_of_batch (", "overlap": "Dice ("}


COUNTING = "tests.support.metric_functions:counts"


@functools.cache
def run(cluster: str, keras: str) -> dict[str, list[TaskProcess]]:
    # Of 9 examples one replica has 5.
    ways = ("evaluate",) if cluster == "servers" else WAYS
    calls: dict[str, tuple[str, dict[str, object]]] = {
        how: (FUNCTION, {"how": how, "batch_size": 9}) for how in ways
    }
    if cluster == "2 devices":
        calls["parts"] = (FUNCTION, {"how": "parts"})
        calls["sums"] = ("tests.support.metric_functions:summed_over_replicas", {})
    calls["counts"] = (COUNTING, {})
    return run_in_turn(calls, replace(CLUSTERS[cluster], keras=keras), job_options={"export": False})


@pytest.mark.parametrize("cluster", ["2 devices", "2 workers"])
@pytest.mark.parametrize("how", WAYS)
def test_metric_that_is_no_sum_is_noted_and_all_others_equal_one_device(
    how: str, cluster: str, keras: str
) -> None:
    [one] = run("1 device", keras)[how]
    for task in run(cluster, keras)[how]:
        values, expected = task.values["values"], one.values["values"]
        right = {name: value for name, value in expected.items() if name not in WRONG}
        assert {name: values[name] for name in right} == pytest.approx(right, rel=1e-5)
        # Once for each metric: the runs before it have noted metrics of these names.
        noted = {name for name, where in WRONG.items() if any(where in note for note in notes_of(task))}
        assert noted == {name for name in values if name in WRONG} | (
            {name for name in WRONG if (name, keras) != ("overlap", "legacy")} if how == "own step" else set()
        )
        assert not any("spread" in note or "each" in note for note in notes_of(task))
        for name in noted & set(values):
            assert values[name] != pytest.approx(expected[name], rel=1e-3)


def test_metric_that_cannot_be_run_on_a_part_of_a_batch_is_noted(keras: str) -> None:
    [task] = run("2 devices", keras)["parts"]
    [note] = [one for one in notes_of(task) if "halves" in one]
    assert "could not be shown" in note


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_metric_whose_result_is_its_variable_counts_each_example(cluster: str, keras: str) -> None:
    task = run(cluster, keras)["counts"][0]
    trained = {"count": 32, "in_dict": 32, "twice": 64, "renamed": 32}
    evaluated = {"count": 40, "in_dict": 40, "twice": 80, "renamed": 40}
    assert task.values["evaluated"] == evaluated
    assert task.values["history"] == {**trained, **{f"val_{name}": one for name, one in evaluated.items()}}
    assert task.values["last batch"] == trained


def test_replicas_of_a_closure_add_up_what_they_have_counted() -> None:
    [task] = run("2 devices", "3")["sums"]
    assert task.values["totals"] == [7.0, 2.0]


def notes_of(task: TaskProcess) -> list[Any]:
    return list(task.values["notes"])


def test_what_parameter_servers_do_with_own_metrics_is_noted() -> None:
    [chief] = run("servers", "3")["evaluate"]
    [note] = notes_of(chief)
    assert "largest from Largest (" in note
    assert "is added up" in note
