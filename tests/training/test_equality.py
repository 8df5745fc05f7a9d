"""Promise 1: the weights do not depend on how many replicas shared the global batch."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.train_functions"
# The batches of 127 and the last one of 113 are divided neither by 2 nor by 3 replicas. Stock TensorFlow is
# off by 1e-2 there, because it weighs 64 and 63 examples alike.
DATA = {"batch_size": 127, "count": 1002, "epochs": 3}
CALLS = {
    "every way": (f"{FUNCTIONS}:weights_of_every_way", DATA),
    "few examples": (f"{FUNCTIONS}:fewer_examples_than_replicas", {}),
    "batch norm": (f"{FUNCTIONS}:synchronized_batchnorm", {}),
    "sparse": (f"{FUNCTIONS}:embedding_with_uneven_batches", {}),
}
CLUSTERS = {
    "one device": {},
    "mirrored on 2 devices": {"strategy": "mirrored", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
    "3 workers": {"strategy": "multi_worker_mirrored", "workers": 3},
    "unequal workers": {"strategy": "multi_worker_mirrored", "workers": 2, "shares": (3, 1)},
}


@functools.cache
def run(name: str, keras: str, *calls: str) -> dict[str, list[TaskProcess]]:
    """Runs some of CALLS, those that are compared by this module in the same processes."""
    # Models without a BatchNormalization do not notice sync_batchnorm.
    options = {"sync_batchnorm": True} if "batch norm" in calls else {}
    cluster = Cluster(**CLUSTERS[name], keras=keras)
    return run_in_turn({call: CALLS[call] for call in calls}, cluster, job_options=options)


def on_one_device(keras: str, call: str) -> dict[str, np.ndarray]:
    # The one that takes the longest, and that not all need, for itself.
    calls = [call] if call == "every way" else [other for other in CALLS if other != "every way"]
    [task] = run("one device", keras, *calls)[call]
    return task.arrays


def on_two_workers(keras: str) -> dict[str, list[TaskProcess]]:
    return run("2 workers", keras, *(("every way", "sparse") if keras == "3" else ("sparse",)))


def on_two_devices(keras: str, call: str) -> TaskProcess:
    [task] = run("mirrored on 2 devices", keras, "few examples", "batch norm")[call]
    return task


@pytest.mark.exhaustive("3 workers", "legacy", "mirrored on 2 devices", covered_by="the same with 2 workers")
@pytest.mark.parametrize(
    ("name", "keras"),
    [
        ("2 workers", "3"),
        ("2 workers", "legacy"),
        ("mirrored on 2 devices", "3"),
        ("mirrored on 2 devices", "legacy"),
        ("3 workers", "3"),
        ("3 workers", "legacy"),
    ],
)
def test_weights_equal_those_of_one_device(name: str, keras: str) -> None:
    expected = on_one_device(keras, "every way")
    assert len(expected) == 8  # fit and train_steps, SGD and Adam, 1 and 10 steps per execution
    is_shared = (name, keras) == ("2 workers", "3")
    for task in (on_two_workers(keras) if is_shared else run(name, keras, "every way"))["every way"]:
        for way, weights in expected.items():
            np.testing.assert_allclose(task.arrays[way], weights, atol=1e-5, rtol=0, err_msg=way)


def test_batch_with_fewer_examples_than_replicas_counts_each_once(keras: str) -> None:
    expected, two = on_one_device(keras, "few examples"), on_two_devices(keras, "few examples")
    for way in ("fit", "accuracy", "masked", "train_steps", "loss"):
        np.testing.assert_allclose(two.arrays[way], expected[way], atol=1e-5, err_msg=way)


def test_synchronized_batchnorm_equals_one_device(keras: str) -> None:
    expected, two = on_one_device(keras, "batch norm"), on_two_devices(keras, "batch norm")
    np.testing.assert_allclose(two.arrays["weights"], expected["weights"], atol=1e-5)


def test_sparse_gradients_of_uneven_batches_equal_one_device(keras: str) -> None:
    expected = on_one_device(keras, "sparse")
    for task in on_two_workers(keras)["sparse"]:
        for name, weights in expected.items():
            np.testing.assert_allclose(task.arrays[name], weights, atol=1e-5, rtol=0, err_msg=name)


def test_workers_of_unequal_shares_equal_one_device(keras: str) -> None:
    calls = [call for call in CALLS if call != "every way"]
    for call, tasks in run("unequal workers", keras, *calls).items():
        for task in tasks:
            for name, expected in on_one_device(keras, call).items():
                np.testing.assert_allclose(
                    task.arrays[name], expected, atol=1e-5, rtol=0, err_msg=f"{call} {name}"
                )


def test_run_that_resumes_with_other_shares_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    target, workers = f"{FUNCTIONS}:two_fits", Cluster(**CLUSTERS["2 workers"])
    [expected] = run_function(target, Cluster(), storage=tmp_path / "a")
    run_function(target, workers, storage=tmp_path / "b", crash_in=1)
    unequal = dataclasses.replace(workers, shares=(3, 1))
    for task in run_function(target, unequal, storage=tmp_path / "b", attempt=1):
        assert task.values["status"]["restored_step"] == 12
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)
