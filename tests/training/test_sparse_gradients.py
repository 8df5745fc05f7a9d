"""Rows of embeddings that a batch looks up several times: optimizers see what they see without raydist."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.loss_functions"
OPTIMIZERS = ("SGD", "Adam", "Adagrad", "Nadam", "Ftrl", "global_clipnorm", "EMA")
TWO_DEVICES = Cluster(strategy="mirrored", devices=2)


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function(f"{FUNCTIONS}:optimizers_with_repeated_rows", cluster)


@pytest.mark.exhaustive("keraslegacy", "multi_worker_mirrored", covered_by="2 devices")
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(),
        TWO_DEVICES,
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="multi_worker_mirrored", workers=3),
        Cluster(keras="legacy"),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tables_are_those_of_keras_without_raydist(optimizer: str, cluster: Cluster) -> None:
    """Rows are summed before any optimizer: others see them as these do."""
    [plain] = run(Cluster(keras=cluster.keras))
    for task in run(cluster):
        if optimizer == "Nadam" and cluster.keras == "legacy" and cluster.devices:
            assert task.values["refused"][optimizer].startswith("tf_keras's Nadam trains embeddings to wrong")
            continue
        expected = plain.arrays[f"plain {optimizer}"]
        np.testing.assert_allclose(task.arrays[optimizer], expected, atol=1e-5, rtol=0)
        # tf_keras's Nadam is noted on several replicas, whatever its gradients are.
        notes = [one for one in task.values["notes"][optimizer] if not one.startswith("tf_keras's Nadam")]
        assert notes == []


@pytest.mark.parametrize("cluster", [Cluster(), TWO_DEVICES], ids=str)
def test_positions_that_are_looked_up_in_eager_steps_are_noted(cluster: Cluster) -> None:
    [task] = run(cluster)
    [sgd, adam] = (task.values["notes"][f"{name}, eager"] for name in ("SGD without momentum", "Adam"))
    told = [note for note in adam if "rows of embeddings are looked up once" in note]
    assert len(told) == (cluster == TWO_DEVICES)
    assert not any("looked up once" in note for note in sgd)
