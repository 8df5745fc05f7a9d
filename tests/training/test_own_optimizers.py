"""Optimizers of the user's own: gradients are those of one device, or the run says so."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

MEAN = "are means over a replica's part of the batch"
CLIPS = "clips or rescales its gradients by itself"
ITSELF = "adds them up over the 2 replicas by itself"
# By Keras what is noted of each, if anything.
NOTES = {
    "legacy": {
        "a mean of its own": MEAN,
        "clips for each example": MEAN,
        "aggregates by itself": ITSELF,
        "an aggregator": None,
        "clips": CLIPS,
        "centres": None,
    },
    "3": {"clips": CLIPS, "centres": None},
}
EQUAL = ("a mean of its own", "clips for each example", "an aggregator", "centres")


@functools.cache
def run(strategy: str, keras: str) -> list[TaskProcess]:
    cluster = Cluster(
        strategy=strategy, devices=2 if strategy == "mirrored" else None, workers=2, keras=keras
    )
    function = "tests.support.own_optimizer_functions:trained_by"
    return run_function(function, cluster, kinds=list(NOTES[keras]))


@pytest.mark.exhaustive("legacy", "multi_worker_mirrored", covered_by="[mirrored-3]")
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
@pytest.mark.parametrize(
    ("keras", "kind"), [(keras, kind) for keras, kinds in NOTES.items() for kind in kinds if kind in EQUAL]
)
def test_weights_are_those_of_one_device(strategy: str, keras: str, kind: str) -> None:
    [expected] = run("one_device", keras)
    for task in run(strategy, keras):
        np.testing.assert_allclose(task.arrays[kind], expected.arrays[kind], atol=1e-5, rtol=0)


@pytest.mark.exhaustive("legacy", "multi_worker_mirrored", covered_by="[mirrored-3]")
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
@pytest.mark.parametrize(
    ("keras", "kind"), [(keras, kind) for keras, kinds in NOTES.items() for kind in kinds]
)
def test_one_note_names_the_optimizer_and_what_it_does(strategy: str, keras: str, kind: str) -> None:
    notes, piece = run(strategy, keras)[0].values["notes"][kind], NOTES[keras][kind]
    if piece is None:
        assert notes == []
    else:
        [note] = notes
        assert piece in note
        assert "own_optimizer_functions.py:" in note
