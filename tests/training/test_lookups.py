"""Rows of tables that one device has once a batch: optimizers get them once on several replicas too."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTION = "tests.support.lookup_functions:tables_looked_up"
KINDS = (
    *("sparse input", "safe lookup", "lookup of weighted ones", "lookup of tables", "each", "of a mask"),
    *("unique", "below a row of zeros", "all at once"),
)
TWO_DEVICES = Cluster(strategy="mirrored", devices=2)
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
LEGACY = Cluster(strategy="mirrored", devices=2, keras="legacy")


@functools.cache
def run(cluster: Cluster, accumulate: int, clipnorm: float | None) -> list[TaskProcess]:
    return run_function(FUNCTION, cluster, kinds=KINDS, accumulate=accumulate, clipnorm=clipnorm)


@pytest.mark.exhaustive("keraslegacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("cluster", "accumulate", "clipnorm"),
    [
        (TWO_DEVICES, 1, None),
        pytest.param(TWO_WORKERS, 1, None, marks=pytest.mark.slow),
        pytest.param(TWO_WORKERS, 2, None, marks=pytest.mark.slow),
        pytest.param(TWO_DEVICES, 1, 0.01, marks=pytest.mark.slow),
        pytest.param(LEGACY, 1, 0.01, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_table_is_that_of_one_device_and_nothing_is_noted(
    kind: str, cluster: Cluster, accumulate: int, clipnorm: float | None
) -> None:
    [expected] = run(Cluster(keras=cluster.keras), accumulate, clipnorm)
    for task in run(cluster, accumulate, clipnorm):
        np.testing.assert_allclose(task.arrays[kind], expected.arrays[kind], atol=1e-5, rtol=0)
        assert [note for note in task.values["notes"] if "looked up" in note] == []


def test_rows_of_which_nothing_shows_that_they_are_unique_are_noted() -> None:
    calls = {
        "hashed": (FUNCTION, {"kinds": ["hashed"]}),
        "eager": (FUNCTION, {"kinds": ["unique"], "is_eager": True}),
    }
    for [task] in run_in_turn(calls, TWO_DEVICES).values():
        [note] = task.values["notes"]
        assert note.startswith("raydist cannot see whether rows of embeddings are looked up once")
