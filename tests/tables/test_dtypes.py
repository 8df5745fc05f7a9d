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
Cell = tuple[str, str]
PLACES = ("input", "output", "variable", "metric")
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"),
    *("int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "string", "complex64", "complex128", "qint8", "quint8", "qint16", "quint16", "qint32"),
)
# Of outputs, which have kinds besides types.
KINDS = ("ragged", "sparse")
# What was wrong once.
QUICK: tuple[Cell, ...] = (
    *(("output", one) for one in ("bfloat16", "bool", "uint64", "complex64", "string", "qint16", "ragged")),
    *(("variable", "bfloat16"), ("metric", "int16")),
)


def cells() -> tuple[Cell, ...]:
    return (*itertools.product(PLACES, DTYPES), *itertools.product(["output"], KINDS))


@functools.cache
def found(given: tuple[Cell, ...], keras: str) -> list[dict[str, Any]]:
    """Returns what each of two workers shows in some cells, and last what plain Keras shows."""
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    tasks = run_function(TARGET, cluster, timeout_s=600, cells=given)
    return [*(task.values for task in tasks), run_plain(TARGET, keras, json.dumps({"cells": given}))]


def differences(cell: Cell, given: tuple[Cell, ...], keras: str) -> list[str]:
    *tasks, right = (one[" ".join(cell)] for one in found(given, keras))
    if "error" in right:  # plain Keras takes no such thing
        return []
    wrong = []
    for index, task in enumerate(tasks):
        if "error" in task:
            if task["error"] != "UnsupportedError":
                wrong.append(f"worker/{index}: {task['trace']}")
            continue
        for name, (dtype, values) in right.items():
            own_dtype, own = task[name]
            if (own_dtype, np.shape(own)) != (dtype, np.shape(values)):
                wrong.append(f"worker/{index}: {name} is {own_dtype} {np.shape(own)} for {np.shape(values)}")
            elif own != values and not np.allclose(own, values, rtol=_tolerance(cell), equal_nan=True):
                wrong.append(f"worker/{index}: {name} is {own} in place of {values}")
    return wrong


def _tolerance(cell: Cell) -> float:
    return 1e-2 if cell[1] in ("float16", "bfloat16") or "float8" in cell[1] else 1e-5


@pytest.mark.parametrize("cell", QUICK, ids=" ".join)
def test_types_that_failed_once_are_computed_as_on_one_device(cell: Cell) -> None:
    *_, right = found(QUICK, "3")
    assert "error" not in right[" ".join(cell)]
    assert differences(cell, QUICK, "3") == []


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("place", PLACES)
def test_each_type_is_computed_as_on_one_device_or_refused(place: str, keras: str) -> None:
    given = cells()
    own = [one for one in given if one[0] == place]
    wrong = {one: differing for one in own if (differing := differences(one, given, keras))}
    assert wrong == {}
