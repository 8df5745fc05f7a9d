"""Promise 1: the weights do not depend on how many replicas shared the global batch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function

# 1000 examples in batches of 128: the last batch has 104, and 3 replicas divide neither. Stock
# TensorFlow is off by 1e-2 there, because it weighs 43, 43 and 42 examples alike (TF_NOTES 12).
DATA = {"batch_size": 128, "count": 1000, "epochs": 3}
CLUSTERS = {
    "mirrored on 2 devices": {"strategy": "mirrored", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
    "3 workers": {"strategy": "multi_worker_mirrored", "workers": 3},
}


@functools.cache
def weights_on_one_device(keras: str) -> dict[str, np.ndarray[Any, Any]]:
    [task] = run_function("tests.support.train_functions:weights_of_every_way", Cluster(keras=keras), **DATA)
    return task.arrays


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_weights_equal_those_of_one_device(cluster: dict[str, Any], keras: str) -> None:
    expected = weights_on_one_device(keras)
    tasks = run_function(
        "tests.support.train_functions:weights_of_every_way", Cluster(**cluster, keras=keras), **DATA
    )
    assert len(expected) == 8  # fit and train_steps, SGD and Adam, 1 and 10 steps per execution
    for task in tasks:
        for way, weights in expected.items():
            np.testing.assert_allclose(task.arrays[way], weights, atol=1e-5, rtol=0, err_msg=way)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_batch_with_fewer_examples_than_replicas_counts_each_once(keras: str) -> None:
    target = "tests.support.train_functions:fewer_examples_than_replicas"
    [one] = run_function(target, Cluster(keras=keras))
    [two] = run_function(target, Cluster(strategy="mirrored", devices=2, keras=keras))
    for way in ("fit", "train_steps", "loss"):
        np.testing.assert_allclose(two.arrays[way], one.arrays[way], atol=1e-5, err_msg=way)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_synchronized_batchnorm_equals_one_device(keras: str) -> None:
    target, options = "tests.support.train_functions:synchronized_batchnorm", {"sync_batchnorm": True}
    [one] = run_function(target, Cluster(keras=keras), job_options=options)
    [two] = run_function(target, Cluster(strategy="mirrored", devices=2, keras=keras), job_options=options)
    np.testing.assert_allclose(two.arrays["weights"], one.arrays["weights"], atol=1e-5)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_sparse_gradients_of_uneven_batches_equal_one_device(keras: str) -> None:
    function = "tests.support.train_functions:embedding_with_uneven_batches"
    [alone] = run_function(function, Cluster(keras=keras))
    for task in run_function(function, Cluster(**CLUSTERS["2 workers"], keras=keras)):
        np.testing.assert_allclose(task.arrays["weights"], alone.arrays["weights"], atol=1e-5, rtol=0)
