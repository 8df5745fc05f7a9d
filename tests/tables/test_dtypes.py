"""Types: what has a type of TensorFlow's is computed as in plain Keras, or refused in a plain sentence."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function
from tests.tables.plain import run_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TARGET = "tests.tables.dtypes:run_cells"
# A place, and the types that one model has there.
Cell = tuple[str, tuple[str, ...]]
PLACES = ("input", "output", "variable", "metric")
CLUSTERS = {
    "3": Cluster(strategy="multi_worker_mirrored", workers=2),
    "legacy": Cluster(strategy="mirrored", devices=2, keras="legacy"),
}
_QUANTIZED = ("qint8", "quint8", "qint16", "quint16", "qint32")
_OF_FOUR_BITS = ("int4", "uint4")
_OF_EIGHT_BITS = ("float8_e5m2", "float8_e4m3fn")
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", *_OF_EIGHT_BITS, *_OF_FOUR_BITS),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "string", "complex64", "complex128", *_QUANTIZED),
)
# What plain Keras does not take, by place.
NOT_TAKEN = {
    ("input", "3"): (*_OF_EIGHT_BITS, *_OF_FOUR_BITS, *_QUANTIZED),
    ("output", "3"): _OF_FOUR_BITS,
    ("variable", "3"): (*_OF_FOUR_BITS, "qint16", "quint16"),
    ("metric", "3"): (*("bfloat16", *_OF_EIGHT_BITS, *_OF_FOUR_BITS, "int8", "bool", "string", *_QUANTIZED),),
    ("input", "legacy"): (*_OF_EIGHT_BITS, *_OF_FOUR_BITS, "qint16", "quint16"),
    ("output", "legacy"): _OF_FOUR_BITS,
    ("variable", "legacy"): (*_OF_EIGHT_BITS, *_OF_FOUR_BITS, "qint16", "quint16"),
    ("metric", "legacy"): (*_OF_EIGHT_BITS, *_OF_FOUR_BITS, "bool", "string", *_QUANTIZED),
}
REFUSED: tuple[Cell, ...] = (("variable", ("string",)),)
# Of outputs, which have kinds besides types.
KINDS: tuple[Cell, ...] = (("output", ("ragged",)), ("output", ("sparse",)))


def together(place: str, keras: str) -> Cell:
    """Returns all types that are computed at a place: one model has all of them."""
    apart = {*NOT_TAKEN[place, keras], *(dtype for one, (dtype,) in REFUSED if one == place)}
    return place, tuple(one for one in DTYPES if one not in apart)


def cells(keras: str) -> tuple[Cell, ...]:
    return (*(together(place, keras) for place in PLACES), *KINDS, *REFUSED)


def not_taken(keras: str) -> tuple[Cell, ...]:
    return tuple((place, (dtype,)) for place in PLACES for dtype in NOT_TAKEN[place, keras])


@functools.cache
def plain(keras: str) -> dict[str, Any]:
    """Returns what plain Keras shows."""
    return run_plain(TARGET, keras, json.dumps({"cells": [*cells(keras), *not_taken(keras)]}))


@functools.cache
def found(keras: str) -> list[dict[str, Any]]:
    """Returns what each task shows in all cells, and last what plain Keras shows."""
    tasks = run_function(TARGET, CLUSTERS[keras], timeout_s=600, cells=cells(keras))
    return [*(task.values for task in tasks), plain(keras)]


def differences(cell: Cell, keras: str) -> list[str]:
    place, dtypes = cell
    *tasks, right = (one[f"{place} {' '.join(dtypes)}"] for one in found(keras))
    assert "error" not in right, right["trace"]
    wrong = []
    for index, task in enumerate(tasks):
        if "error" in task:
            wrong.append(f"worker/{index}: {task['trace']}")
            continue
        for name, (dtype, values) in right.items():
            own_dtype, own = task[name]
            if (own_dtype, np.shape(own)) != (dtype, np.shape(values)):
                wrong.append(f"worker/{index}: {name} is {own_dtype} {np.shape(own)} for {np.shape(values)}")
            elif own != values and not np.allclose(own, values, rtol=_tolerance(name), equal_nan=True):
                wrong.append(f"worker/{index}: {name} is {own} in place of {values}")
    return wrong


def _tolerance(shown: str) -> float:
    return 1e-2 if any(one in shown for one in ("float16", "float8")) else 1e-5


@pytest.mark.parametrize("keras", CLUSTERS)
@pytest.mark.parametrize("place", PLACES)
def test_each_type_is_computed_as_on_one_device(place: str, keras: str) -> None:
    assert differences(together(place, keras), keras) == []


@pytest.mark.parametrize("keras", CLUSTERS)
@pytest.mark.parametrize("cell", KINDS, ids=str)
def test_ragged_and_sparse_outputs_are_those_of_one_device(cell: Cell, keras: str) -> None:
    assert differences(cell, keras) == []


@pytest.mark.parametrize("cell", REFUSED, ids=str)
def test_what_workers_cannot_send_is_refused_and_devices_compute_it(cell: Cell) -> None:
    place, [dtype] = cell
    *tasks, right = (one[f"{place} {dtype}"] for one in found("3"))
    assert "error" not in right
    assert {task["error"] for task in tasks} == {"UnsupportedError"}
    assert differences(cell, "legacy") == []


@pytest.mark.parametrize("keras", CLUSTERS)
def test_types_that_are_left_out_are_not_taken_by_plain_keras(keras: str) -> None:
    names = [f"{place} {dtype}" for place, (dtype,) in not_taken(keras)]
    assert [name for name in names if "error" not in plain(keras)[name]] == []


def test_each_place_has_each_type() -> None:
    tried = {
        (place, keras, dtype)
        for place, keras in itertools.product(PLACES, CLUSTERS)
        for dtype in (*together(place, keras)[1], *NOT_TAKEN[place, keras])
    }
    refused = {(place, keras, dtype) for (place, [dtype]), keras in itertools.product(REFUSED, CLUSTERS)}
    assert tried | refused == set(itertools.product(PLACES, CLUSTERS, DTYPES))
