"""What a user's own code shows of a batch is what one device shows, or is noted."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

EQUAL = (
    "compiled outside",
    "sum in compute_loss",
    "evaluated",
    "sum in a layer",
    "renamed",
    "zero",
    "loss of sums",
    "losses of examples",
)
# By program the value that cannot be put together from the replicas'.
NOTED = {"own step": ("root", "largest"), "returned": ("sum_of_errors",)}
NAMES = (*EQUAL, *NOTED, "normed", "normed, mean in a layer", "worked out", "metric from outside")


@functools.cache
def run(keras: str, *, workers: int) -> list[TaskProcess]:
    strategy = "multi_worker_mirrored" if workers > 1 else "one_device"
    cluster = Cluster(strategy=strategy, workers=workers, keras=keras)
    return run_function("tests.support.shown_functions:shown", cluster, names=NAMES)


Shown = tuple[Any, list[tuple[Any, list[str]]]]


@pytest.fixture
def shown(name: str, keras: str) -> Shown:
    """What one device shows, and what each of two workers shows and notes."""
    [one], tasks = run(keras, workers=1), run(keras, workers=2)
    return one.values["values"][name], [
        (task.values["values"][name], task.values["notes"][name]) for task in tasks
    ]


@pytest.mark.parametrize("name", EQUAL)
def test_sums_and_metrics_are_those_of_one_device(name: str, keras: str, shown: Shown) -> None:
    if (name, keras) == ("sum in a layer", "legacy"):
        pytest.skip("tf_keras cannot make a functional model of such a layer in a scope")
    expected, found = shown
    assert "error" not in expected
    for values, notes in found:
        assert values.keys() == expected.keys()
        for key, value in expected.items():
            assert values[key] == pytest.approx(value, rel=1e-5), key
        assert not any("depends on how a batch is divided" in note for note in notes)


@pytest.mark.parametrize("name", NOTED)
def test_values_that_depend_on_how_a_batch_is_divided_are_noted(name: str, shown: Shown) -> None:
    expected, found = shown
    for values, notes in found:
        [note] = [one for one in notes if "depends on how a batch is divided over the 2 replicas" in one]
        assert "train_step (" in note
        for key in NOTED[name]:
            assert values[key] != pytest.approx(expected[key], rel=1e-2)


def test_metric_in_a_layer_leaves_a_model_that_normalises_as_it_is() -> None:
    for task in run("3", workers=2):
        values, notes = task.values["values"], task.values["notes"]
        found = dict(values["normed, mean in a layer"])
        assert {"activity", "val_activity"} <= found.keys()
        assert {name: found[name] for name in values["normed"]} == values["normed"]
        [note] = notes["normed, mean in a layer"]
        assert "normalise each replica's part" in note


@pytest.mark.parametrize("name", ["worked out"])
def test_what_a_step_works_out_from_metrics_is_noted_and_their_results_are_those_of_one_device(
    shown: Shown,
) -> None:
    expected, found = shown
    for values, notes in found:
        assert [one.partition(" (")[0] for one in notes if "works out perplexity from" in one] == [
            "ShowsMetrics.train_step",
            "ShowsMetrics.test_step",
        ]
        for key in ("loss", "val_loss"):
            assert values[key] == pytest.approx(expected[key], rel=1e-5)
        for key in ("perplexity", "val_perplexity"):
            assert values[key] != pytest.approx(expected[key], rel=1e-5)


def test_parameter_servers_show_results_of_metrics_by_other_names(keras: str) -> None:
    clusters = (Cluster(strategy="parameter_server", workers=1, ps=1, keras=keras), Cluster(keras=keras))
    [servers], [one] = (run_function("tests.support.shown_functions:on_servers", each) for each in clusters)
    for name, expected in one.values["values"].items():
        values = servers.values["values"][name]
        for key in ("loss", "val_loss"):
            assert values[key] == pytest.approx(expected[key], rel=1e-5)
    assert len([note for note in servers.values["notes"] if "works out perplexity from" in note]) == 2


@pytest.mark.parametrize("name", ["metric from outside"])
def test_metric_that_was_made_outside_of_the_scope_is_refused(keras: str, shown: Shown) -> None:
    expected, found = shown
    assert ("error" in expected) is (keras == "legacy")  # tf_keras refuses it on one device, too
    for values, _ in found:
        assert "outside" in values["error"]
