"""The examples of each step are those that Keras without raydist takes, epoch by epoch."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function

TRAININGS = (
    *("epochs", "shuffle of shuffled", "repeated", "unknown length", "validated on itself", "in a row"),
    *("as many steps as batches", "fewer steps", "whole calls", "generator"),
)
run = functools.cache(functools.partial(run_function, "tests.support.plain_keras:train_all"))


@pytest.mark.exhaustive("2", "keraslegacy", covered_by="[…-one_device-1-keras3]")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(),
        Cluster(keras="legacy"),
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="mirrored", devices=2),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", TRAININGS)
def test_steps_train_on_the_examples_of_plain_keras(name: str, cluster: Cluster) -> None:
    [plain] = run(Cluster(keras=cluster.keras))
    for task in run(cluster):
        for who in ("fit", "ctx.fit"):
            expected = plain.arrays[f"{name} by plain"]
            np.testing.assert_allclose(task.arrays[f"{name} by {who}"], expected, atol=1e-5, rtol=0)
