"""`ctx.fit` takes what `model.fit` takes: arrays, PyDatasets, generators; as Keras on one device."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.given_functions import AS_KERAS, SHUFFLED
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.given_functions"
Calls = dict[str, tuple[str, dict[str, Any]]]
KERAS: Calls = {f"keras, {way}": (f"{FUNCTIONS}:through_keras", {"way": way}) for way in AS_KERAS}
CTX: Calls = {way: (f"{FUNCTIONS}:through_ctx", {"way": way}) for way in (*AS_KERAS, *SHUFFLED)}
WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
ELSEWHERE = pytest.mark.exhaustive(covered_by="the same with 2 workers")
CLUSTERS = [
    WORKERS,
    *(
        pytest.param(one, marks=ELSEWHERE)
        for one in (
            Cluster(strategy="mirrored", devices=2, keras="legacy"),
            Cluster(strategy="mirrored", devices=2),
            Cluster(strategy="multi_worker_mirrored", workers=2, devices=2),
            Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"),
        )
    ),
]


@functools.cache
def run(cluster: Cluster) -> dict[str, list[TaskProcess]]:
    # ctx.fit comes first: what the order of arrays is made of counts the calls.
    calls = CTX | (KERAS if cluster.strategy == "one_device" else {"refused": (f"{FUNCTIONS}:refused", {})})
    if cluster == WORKERS:
        calls["other arrays"] = (f"{FUNCTIONS}:other_arrays", {})
    return run_in_turn(calls, cluster)


@functools.cache
def through_ctx(way: str, keras: str) -> TaskProcess:
    """Returns the first training of a process, whose order depends on that."""
    [task] = run_function(f"{FUNCTIONS}:through_ctx", Cluster(keras=keras), way=way)
    return task


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
class TestAsOnOneDevice:
    @pytest.mark.parametrize("way", AS_KERAS)
    def test_data_are_taken_as_keras_takes_them(self, cluster: Cluster, way: str) -> None:
        [expected] = run(Cluster(keras=cluster.keras))[f"keras, {way}"]
        for task in run(cluster)[way]:
            np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)
            assert task.values["history"].keys() == expected.values["history"].keys()
            for name, values in expected.values["history"].items():
                assert task.values["history"][name] == pytest.approx(values, abs=1e-5), name
            notes = "\n".join(task.values["notes"])
            assert "another order than Keras" not in notes
            goes_on = way == "py dataset, other steps" and cluster.keras != "legacy"
            assert ("on through the next pass" in notes) == goes_on

    @pytest.mark.parametrize("way", SHUFFLED)
    def test_shuffled_order_does_not_depend_on_the_cluster(self, cluster: Cluster, way: str) -> None:
        found = run(Cluster(keras=cluster.keras))
        [expected] = found[way]
        for task in run(cluster)[way]:
            np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)
            what = "arrays" if way == "shuffled" else "the batches of a PyDataset"
            assert any(
                note.startswith(f"detail: ctx.fit shuffles {what} by --seed") for note in task.values["notes"]
            )
        [in_order] = found["py dataset, padded" if way.endswith("padded") else "py dataset"]
        assert np.abs(in_order.arrays["weights"] - expected.arrays["weights"]).max() > 1e-3

    def test_mistakes_are_told(self, cluster: Cluster) -> None:
        for task in run(cluster)["refused"]:
            told = task.values
            assert all(sentence.startswith("UnsupportedError: ") for sentence in told.values())
            assert "can be read once, and epochs are 2" in told["generator"]
            assert "yields no batch" in told["empty generator"]
            assert "[49, 50]" in told["rows"]
            assert "validation_split is 1.5 of 50 examples" in told["split"]
            assert "got y beside train_data of Batches" in told["beside"]
            assert "class_weight and sample_weight" in told["both weights"]
            if cluster.keras == "legacy":
                assert "class_weight has no weight for a class" in told["class without a weight"]
            else:
                assert "of the shape (16, 6, 5), and (None, 4, 5) was expected" in told["sizes"]


@pytest.mark.exhaustive(
    "generator",
    "legacy",
    "py dataset, other steps",
    "py dataset, reordered",
    "py dataset, shuffled",
    "steps",
    covered_by="[shuffled-3]; test_recipes.py",
)
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize(
    "way",
    [
        *("shuffled", "py dataset, shuffled", "py dataset, shuffled, padded", "generator"),
        "py dataset, other steps",
        "steps",
        "py dataset, reordered",
    ],
)
def test_run_that_was_interrupted_inside_an_epoch_resumes_exactly(
    way: str, keras: str, tmp_path: Path
) -> None:
    target, where = f"{FUNCTIONS}:through_ctx", Cluster(strategy="mirrored", devices=2, keras=keras)
    options = {"job_options": {"checkpoint_every": "6"}}
    expected = through_ctx(way, keras)
    [crashed] = run_function(target, where, way=way, storage=tmp_path, crash_after=7, **options)
    assert "weights" not in crashed.arrays
    [resumed] = run_function(target, where, way=way, storage=tmp_path, attempt=1, **options)
    np.testing.assert_allclose(resumed.arrays["weights"], expected.arrays["weights"], atol=1e-5)
    assert resumed.values["step"] == expected.values["step"]
    assert resumed.values["history"]["loss"] == pytest.approx(expected.values["history"]["loss"], abs=1e-5)
    is_told = any("cannot be rewound" in note for note in resumed.values["notes"])
    assert is_told == (way == "generator")


def test_workers_with_arrays_of_their_own_are_named() -> None:
    for task in run(WORKERS)["other arrays"]:
        assert task.values["told"].startswith("UnsupportedError: worker/1 has other batches than the others")


def test_arrays_are_trained_on_under_parameter_server() -> None:
    where = Cluster(strategy="parameter_server", workers=1, ps=1)
    [chief] = run_function(f"{FUNCTIONS}:through_ctx", where, way="shuffled")
    expected = through_ctx("shuffled", "3").arrays["weights"]
    np.testing.assert_allclose(chief.arrays["weights"], expected, atol=1e-5)
