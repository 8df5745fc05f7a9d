"""Preprocessing layers of Keras that are adapted to data."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function

TARGET = "tests.support.adapt_functions:every_layer"
# tf_keras refuses a layer that was adapted outside of the scope, and adapts Discretization to other shapes.
PLACES = {"3": ("outside", "inside"), "legacy": ("inside",)}
DEVICES = Cluster(strategy="mirrored", devices=2)
# Those that the default run leaves out.
MORE_PLACES = ("after compile", "outside, dataset")


@pytest.mark.exhaustive("keraslegacy", covered_by="the same with Keras 3")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="multi_worker_mirrored", workers=2),
        pytest.param(Cluster(strategy="mirrored", devices=2, keras="legacy"), marks=pytest.mark.slow),
        pytest.param(DEVICES, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_model_with_an_adapted_layer_trains_and_is_kept(cluster: Cluster) -> None:
    places = (*PLACES[cluster.keras], *(MORE_PLACES if cluster == DEVICES else ()))
    [one] = run_function(TARGET, Cluster(keras=cluster.keras), places=places)
    assert one.values == {"told": []}  # a vocabulary does not change in training
    assert len(one.arrays) == 5 * len(places)
    for task in run_function(TARGET, cluster, places=places):
        assert task.values == one.values
        for name, expected in one.arrays.items():
            np.testing.assert_allclose(task.arrays[name], expected, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_model_with_a_vocabulary_trains_with_a_loss_or_a_step_of_its_own(keras: str) -> None:
    target = "tests.support.adapt_functions:with_own_functions"
    [task] = run_function(target, Cluster(strategy="mirrored", devices=2, keras=keras))
    assert set(task.arrays) == {"neither", "loss", "step", "eager"}
    for name, found in task.arrays.items():
        np.testing.assert_allclose(found, task.arrays["neither"], atol=1e-6, err_msg=name)
