"""Pipelines of `tf.data` that the workers read in different orders are noted: nothing else would show it."""

from __future__ import annotations

import pytest

from tests.support.processes import Cluster, run_function

NOTED = "tests.support.order_functions:noted"
DIFFERENT = ("drawn in one worker", "seed of the worker", "names in other orders", "values of the worker")
IN_ANY_ORDER = {
    "interleaved in any order": ".interleave has deterministic=False",
    "mapped in any order": ".map has deterministic=False",
    "mapped in any order inside": ".flat_map has deterministic=False",
}
ALIKE = ("alike", "interleaved in order", "generated")


@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_workers_that_read_in_different_orders_are_noted(keras: str) -> None:
    tasks = run_function(NOTED, Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras))
    chief, other = (task.values["fingerprints"] for task in tasks)
    assert {name for name, value in chief.items() if value != other[name]} == set(DIFFERENT)
    for task in tasks:
        told = task.values["told"]
        assert told.keys() == {*ALIKE, *DIFFERENT, *IN_ANY_ORDER}
        assert all(told[name] == [] for name in ALIKE), told
        [note] = told[DIFFERENT[0]]  # of the others the same sentence, which is noted once
        assert "the dataset of worker/1 begins with other values, or shuffles by another seed" in note
        for name, sentence in IN_ANY_ORDER.items():
            [note] = told[name]
            assert sentence in note
