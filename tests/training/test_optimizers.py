"""Every optimizer of either Keras trains on several replicas what it trains on one device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "central_storage", "devices": 2},
    {"strategy": "mirrored", "devices": 2},
    {"strategy": "multi_worker_mirrored", "workers": 2},
)
# What they need of a strategy differs: state of one number, steps that are skipped, updates in Python.
REQUIRED = {"Adam", "Nadam", "LossScaleOptimizer", "LossScaleOptimizer-skipping", "SGD-momentum"}


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function("tests.support.optimizer_functions:train_with_each", cluster, timeout_s=600)


@pytest.mark.exhaustive(
    "keraslegacy", "mirrored", "multi_worker_mirrored", covered_by="[central_storage-2-keras3]"
)
@pytest.mark.parametrize(
    "cluster",
    [Cluster(**strategy, keras=keras) for keras in ("3", "legacy") for strategy in STRATEGIES],
    ids=str,
)
def test_optimizers_train_what_one_device_trains(cluster: Cluster) -> None:
    [one] = run(Cluster(keras=cluster.keras))
    assert one.values == {}
    assert one.arrays.keys() >= REQUIRED | ({"Muon"} if cluster.keras == "3" else {"legacy.Adam"})
    for task in run(cluster):
        assert task.values == {}
        distances = {name: np.abs(task.arrays[name] - one.arrays[name]).max() for name in one.arrays}
        assert {name: each for name, each in distances.items() if not each < 1e-5} == {}
