"""Predictions that depend on how a batch is divided over replicas are told, without a fit before."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from tests.support.prediction_functions import NAMED, NUM_ROWS
from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTION = "tests.support.prediction_functions:predicted"
CLUSTERS = {
    "one device": Cluster(),
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
}
SIZES = {"": NUM_ROWS, ", a row each": 2}
COMPARES = "make what they give an example depend on the others of the batch"


@functools.cache
def run(cluster: str, keras: str) -> dict[str, list[TaskProcess]]:
    calls: dict[str, tuple[str, dict[str, object]]] = {
        name + suffix: (FUNCTION, {"name": name, "batch_size": size})
        for name in NAMED
        for suffix, size in SIZES.items()
    }
    return run_in_turn(calls, dataclasses.replace(CLUSTERS[cluster], keras=keras))


@pytest.mark.parametrize("cluster", ["2 devices", "2 workers"])
@pytest.mark.parametrize("suffix", SIZES)
@pytest.mark.parametrize("name", NAMED)
def test_layer_that_compares_examples_is_told_once(name: str, suffix: str, cluster: str, keras: str) -> None:
    for task in run(cluster, keras)[name + suffix]:
        assert task.values["is_noted_once"]
        if (named := NAMED[name]) is None:
            assert task.values["notes"] == []
        else:
            [note] = task.values["notes"]
            assert note.startswith(f"{named} {COMPARES}")
            assert note.endswith("; one worker with one device has whole batches")


@pytest.mark.parametrize("name", NAMED)
def test_rows_differ_from_those_of_one_device_where_there_is_a_note(name: str, keras: str) -> None:
    if name == "own draws":
        pytest.skip("its rows are never twice the same")
    [expected] = run("one device", keras)[name]
    assert expected.values["notes"] == []
    for task in run("2 devices", keras)[name]:
        difference = np.abs(task.arrays["rows"] - expected.arrays["rows"]).max()
        assert bool(difference > 1e-5) is (NAMED[name] is not None), difference
