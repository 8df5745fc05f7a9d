"""Rows that are looked up several times count once: an optimizer sees what dense gradients would give."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

TARGET = "tests.support.loss_functions:optimizers_with_repeated_rows"
OPTIMIZERS = (
    "SGD Adam AMSGrad AdamW Adagrad RMSprop Adadelta Adamax Nadam Ftrl Adafactor "
    "clipnorm global_clipnorm clipvalue EMA"
).split()


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function(TARGET, cluster)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="mirrored", devices=2),
        pytest.param(Cluster(strategy="multi_worker_mirrored", workers=2), marks=pytest.mark.slow),
        pytest.param(Cluster(strategy="multi_worker_mirrored", workers=3), marks=pytest.mark.slow),
        pytest.param(Cluster(strategy="mirrored", devices=2, keras="legacy"), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_sees_the_sum_of_equal_rows(optimizer: str, cluster: Cluster) -> None:
    [expected] = run(Cluster(keras=cluster.keras))
    for task in run(cluster):
        np.testing.assert_allclose(task.arrays[optimizer], expected.arrays[optimizer], atol=1e-5, rtol=0)


def test_summed_rows_are_noted_where_they_change_an_update() -> None:
    [task] = run(Cluster())
    noted = {
        name: [note for note in notes if "plain Keras 3 run" in note]
        for name, notes in task.values["notes"].items()
    }
    assert noted["SGD"] == []
    assert [note.partition(" gets them")[0] for note in noted["Adam"]] == [
        "rows of embeddings that a batch looks up several times are summed before Adam"
    ]
    assert (len(noted["Adagrad"]), len(noted["Ftrl"])) == (1, 1)
    assert noted["clipnorm"] == []  # Adam again: said once


def test_unpatched_keras_still_squares_equal_rows_one_by_one() -> None:
    """Fails once Keras sums them by itself: `with_unique_rows` is then no longer needed."""
    [task] = run_function("tests.support.loss_functions:adam_of_stock_keras", Cluster())
    sparse, dense = task.arrays["sparse"], task.arrays["dense"]
    assert np.abs(sparse - dense).max() > 1e-3
    # Where no strategy of the run is, Keras does what it does without raydist.
    np.testing.assert_array_equal(task.arrays["outside of a strategy"], sparse)
