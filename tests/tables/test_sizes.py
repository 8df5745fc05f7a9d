"""Sizes and calls: each computes what plain Keras computes on one device, without a false note."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function
from tests.tables import cells as table
from tests.tables.cells import Cell
from tests.tables.plain import run_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TARGET = "tests.tables.sizes:run_cells"
# What is told of a step of `ctx.train_steps`, and of data of unknown length.
TRUE_NOTES = (
    "are means over a replica's part of the batch",
    "ctx.restore was given nothing to save",
    "the length of the data is not known: Keras 3 by itself counts one step too many",
)


# It is told too of the step of a loop whose first batch gives a replica one row alone.
OF_ONE_ROW = "could not be shown, because it could not be run on a part of a batch"


@functools.cache
def found(where: table.Where) -> list[dict[str, Any]]:
    """Returns what each worker of a cluster finds in its cells."""
    workers, keras, virtual = where
    cluster = Cluster(
        strategy="multi_worker_mirrored" if workers > 1 else "one_device", workers=workers, keras=keras
    )
    options = {"virtual_replicas": virtual} if virtual else {}
    cells = [_values(cell) for cell in table.chosen() if cell.where == where]
    return [
        task.values for task in run_function(TARGET, cluster, timeout_s=900, cells=cells, job_options=options)
    ]


def expected(cell: Cell) -> dict[str, Any]:
    """Returns what plain Keras computes in a cell; the cells of all clusters run in one process."""
    keras = cell.where[1]
    alike = {one.name: _values(one) for one in table.chosen() if one.where[1] == keras}
    results: dict[str, Any] = run_plain(TARGET, keras, json.dumps({"cells": [*alike.values()]}))[cell.name]
    return results


def _values(cell: Cell) -> list[Any]:
    return [cell.call, cell.kind, cell.rows, cell.batch]


def differences(cell: Cell) -> list[str]:
    """Returns how the workers' values, rows and notes differ from plain Keras's."""
    right = expected(cell)
    assert "error" not in right, right["error"]
    wrong = []
    for index, values in enumerate(found(cell.where)):
        task = values[cell.name]
        if "error" in task:
            wrong.append(f"worker/{index} failed: {task['error']}")
            continue
        if task["shown"].keys() != right["shown"].keys():
            wrong.append(f"worker/{index} shows {[*task['shown']]}, and one device {[*right['shown']]}")
            continue
        for name, one in right["shown"].items():
            own = np.asarray(task["shown"][name])
            if own.shape != np.shape(one):
                wrong.append(f"worker/{index}: {name} has shape {own.shape} in place of {np.shape(one)}")
            elif not np.allclose(own, one, rtol=1e-4, atol=1e-5):
                wrong.append(f"worker/{index}: {name} is {own.ravel()[:4]} in place of {np.ravel(one)[:4]}")
        is_unknown = cell.call == "ctx.train_steps" and cell.has_one_row
        true = (*TRUE_NOTES, OF_ONE_ROW) if is_unknown else TRUE_NOTES
        notes = [one for one in task["notes"] if not any(words in one for words in true)]
        wrong += [f"worker/{index} notes: {one}" for one in notes]
    return wrong


@pytest.mark.parametrize("where", table.CLUSTERS, ids=lambda where: "-".join(map(str, where)))
@pytest.mark.parametrize("call", table.CALLS)
def test_each_call_computes_what_one_device_computes(call: str, where: table.Where) -> None:
    own = [one for one in table.chosen() if (one.call, one.where) == (call, where)]
    assert {one.name: differing for one in own if (differing := differences(one))} == {}


def test_cells_have_each_pair_of_values() -> None:
    found = {pair for cell in table.chosen() for pair in table.pairs_of(cell)}
    assert found.issuperset(pair for pairs in table.possible().values() for pair in pairs)
