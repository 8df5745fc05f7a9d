"""Pipelines of `tf.data` that the workers read in different orders are noted: nothing else would show it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

FUNCTIONS = "tests.support.order_functions"
DIFFERENT = ("drawn in one worker", "seed of the worker", "names in other orders", "values of the worker")
IN_ANY_ORDER = {
    "interleaved in any order": ".interleave has deterministic=False",
    "mapped in any order": ".map has deterministic=False",
    "mapped in any order inside": ".flat_map has deterministic=False",
}
ALIKE = ("alike", "interleaved in order", "generated")
WORKERS = {"strategy": "multi_worker_mirrored", "workers": 2}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (f"{FUNCTIONS}:{name}", {}) for name in ("noted", "noted_of_python")
}


@functools.cache
def run(keras: str) -> dict[str, list[TaskProcess]]:
    return run_in_turn(CALLS, Cluster(**WORKERS, keras=keras))


@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_workers_that_read_in_different_orders_are_noted(keras: str) -> None:
    tasks = run(keras)["noted"]
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


@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_workers_whose_python_makes_other_batches_are_noted(keras: str) -> None:
    names = {"generator": "train_data", "py dataset": "train_data", "evaluated": "data of ctx.evaluate"}
    if keras == "3":
        names |= {"plain generator": "the data of this fit", "plain py dataset": "the data of this fit"}
    for task in run(keras)["noted_of_python"]:
        told = task.values["told"]
        assert told["alike"] == told["alike, py dataset"] == told["alike, plain"] == []
        for case, name in names.items():
            [note] = told[case]
            assert note.startswith(f"the first batches of {name} that worker/1 makes are others than those")
