"""Batch normalisation in steps of the user's own: their losses are taken for what they are."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.norm_functions"
NORMS = ("plain", "synchronized")
OWN = ("train step", "loop")
TWO_DEVICES = Cluster(strategy="mirrored", devices=2)


@functools.cache
def run_all(cluster: Cluster) -> dict[str, list[TaskProcess]]:
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "normalised": (f"{FUNCTIONS}:normalised", {"norms": NORMS, "ways": ("compiled", *OWN)}),
        "reducing": (f"{FUNCTIONS}:reducing_layer", {}),
    }
    return run_in_turn(calls, cluster)


def run(cluster: Cluster) -> list[TaskProcess]:
    return run_all(cluster)["normalised"]


CLUSTERS = [
    TWO_DEVICES,
    pytest.param(
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
        marks=pytest.mark.exhaustive(covered_by="the same with Keras 3"),
    ),
    Cluster(strategy="multi_worker_mirrored", workers=2),
]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("way", OWN)
def test_mean_loss_with_statistics_of_each_replica_trains_as_kerass_own(cluster: Cluster, way: str) -> None:
    for task in run(cluster):
        arrays = task.arrays
        np.testing.assert_allclose(arrays[f"plain, {way}"], arrays["plain, compiled"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("way", OWN)
def test_mean_loss_with_statistics_of_the_batch_trains_as_one_device(cluster: Cluster, way: str) -> None:
    [expected] = run(Cluster(keras=cluster.keras))
    for task in run(cluster):
        name = f"synchronized, {way}"
        np.testing.assert_allclose(task.arrays[name], expected.arrays[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("way", OWN)
@pytest.mark.parametrize("norm", NORMS)
def test_notes_tell_that_losses_are_averaged_and_what_is_normalised(
    cluster: Cluster, way: str, norm: str
) -> None:
    notes = [one for one in run(cluster)[0].values["notes"][f"{norm}, {way}"] if "ctx.restore" not in one]
    assert len([one for one in notes if "so gradients are averaged over the" in one]) == 1
    assert len([one for one in notes if "normalise each replica's part of the batch" in one]) == (
        norm == "plain"
    )
    assert len(notes) == 1 + (norm == "plain")


@pytest.mark.parametrize("cluster", CLUSTERS[:2], ids=str)
def test_what_a_layer_reduces_is_not_taken_for_a_reduction_of_gradients(cluster: Cluster) -> None:
    [expected], [task] = (run_all(one)["reducing"] for one in (Cluster(keras=cluster.keras), cluster))
    np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5, rtol=0)
    assert [note for note in task.values["notes"] if "adds them up" in note] == []
