"""Rows of tables that one device has once a batch: optimizers get them once on several replicas too."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FUNCTION = "tests.support.lookup_functions:tables_looked_up"
KINDS = (
    *("sparse input", "safe lookup", "lookup of weighted ones", "lookup of tables", "each", "of a mask"),
    *("unique", "below a row of zeros", "all at once"),
)
# By cluster how it updates: clipped to a norm, or of several batches.
UPDATES: dict[str, tuple[Cluster, dict[str, object]]] = {
    "2 devices": (Cluster(strategy="mirrored", devices=2), {"clipnorm": 0.01}),
    "2 workers": (Cluster(strategy="multi_worker_mirrored", workers=2), {"accumulate": 2}),
    "legacy": (Cluster(strategy="mirrored", devices=2, keras="legacy"), {"clipnorm": 0.01}),
}


@functools.cache
def run(cluster: Cluster) -> dict[str, list[TaskProcess]]:
    ways = [way for other, way in UPDATES.values() if cluster in (other, Cluster(keras=other.keras))]
    calls: dict[str, tuple[str, dict[str, object]]] = {
        str(way): (FUNCTION, {"kinds": KINDS, **way}) for way in ways
    }
    if cluster == UPDATES["2 devices"][0]:
        calls["hashed"] = (FUNCTION, {"kinds": ["hashed"]})
        calls["eager"] = (FUNCTION, {"kinds": ["unique"], "is_eager": True})
    return run_in_turn(calls, cluster)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("name", UPDATES)
def test_tables_are_those_of_one_device_and_nothing_is_noted(name: str) -> None:
    cluster, way = UPDATES[name]
    [expected] = run(Cluster(keras=cluster.keras))[str(way)]
    for task in run(cluster)[str(way)]:
        for kind in KINDS:
            np.testing.assert_allclose(
                task.arrays[kind], expected.arrays[kind], atol=1e-5, rtol=0, err_msg=kind
            )
        assert [note for note in task.values["notes"] if "looked up" in note] == []


@pytest.mark.parametrize("name", ["hashed", "eager"])
def test_rows_of_which_nothing_shows_that_they_are_unique_are_noted(name: str) -> None:
    [task] = run(UPDATES["2 devices"][0])[name]
    [note] = task.values["notes"]
    assert note.startswith("raydist cannot see whether rows of embeddings are looked up once")
