"""Sizes and calls: each computes what plain Keras computes on one device, without a false note."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import run_function
from tests.tables import cells as table
from tests.tables.cells import Cell
from tests.tables.plain import run_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TARGET = "tests.tables.sizes:run_cells"
# What was wrong once: batches that the replicas divide, virtual replicas of other workers, and workers with
# different numbers of them.
QUICK = (
    *(Cell("predict", kind, 320, "32") for kind in ("array", "dynamic", "drop_remainder", "py_dataset")),
    Cell("predict", "static", 65, "8"),
    Cell("predict", "array", 1, "more"),
    Cell("ctx.predict", "drop_remainder", 320, "32"),
    Cell("predict_on_batch", "array", 8, "8"),
    Cell("evaluate", "array", 320, "32"),
    Cell("fit", "static", 64, "8"),
    Cell("ctx.fit", "py_dataset", 7, "8"),
    *(Cell("predict", kind, 65, "6", virtual=3) for kind in ("array", "static")),
    Cell("predict", "infinite", 1, "6", virtual=3),
    Cell("ctx.fit", "batches", 65, "6", virtual=3),
    Cell("predict_on_batch", "array", 7, "6", virtual=3),
    Cell("evaluate", "unknown", 7, "6", virtual=3),
)
# What is told of a step of `ctx.train_steps`, and of data of unknown length.
TRUE_NOTES = (
    "are means over a replica's part of the batch",
    "ctx.restore was given nothing to save",
    "the length of the data is not known: Keras 3 by itself counts one step too many",
)


# It is told too of the step of a loop whose first batch gives a replica one row alone.
OF_ONE_ROW = "could not be shown, because it could not be run on a part of a batch"


@functools.cache
def found(where: tuple[int, str, int], cells: tuple[Cell, ...]) -> list[dict[str, Any]]:
    """Returns what each worker of a cluster finds in its cells."""
    options = {"export": False, **({"virtual_replicas": where[2]} if where[2] else {})}
    cluster = table.cluster_of(where)
    tasks = run_function(TARGET, cluster, timeout_s=900, cells=_values(cells), job_options=options)
    return [task.values for task in tasks]


def expected(cell: Cell, cells: tuple[Cell, ...]) -> dict[str, Any]:
    """Returns what plain Keras computes in a cell; the cells of all clusters run in one process."""
    given = tuple({one.name: one for one in cells if one.keras == cell.keras}.values())
    results: dict[str, Any] = run_plain(TARGET, cell.keras, json.dumps({"cells": _values(given)}))[cell.name]
    return results


def _values(cells: tuple[Cell, ...]) -> list[list[Any]]:
    return [[one.call, one.kind, one.rows, one.batch] for one in cells]


def differences(cell: Cell, cells: tuple[Cell, ...]) -> list[str]:
    """Returns how the workers' values, rows and notes differ from plain Keras's."""
    right = expected(cell, cells)
    assert "error" not in right, right["error"]
    wrong = []
    for index, values in enumerate(found(cell.where, tuple(one for one in cells if one.where == cell.where))):
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


@pytest.mark.parametrize("cell", QUICK, ids=lambda cell: f"{cell.name}-{cell.virtual}")
def test_cell_that_was_wrong_once_computes_what_one_device_computes(cell: Cell) -> None:
    assert differences(cell, QUICK) == []


@pytest.mark.parametrize("where", table.clusters(), ids=lambda where: "-".join(map(str, where)))
@pytest.mark.parametrize("call", table.CALLS)
def test_each_call_computes_what_one_device_computes(call: str, where: tuple[int, str, int]) -> None:
    cells = table.chosen()
    own = [one for one in cells if (one.call, one.where) == (call, where)]
    wrong = {one.name: differing for one in own if (differing := differences(one, cells))}
    assert wrong == {}


def test_cells_have_each_pair_of_values_and_sizes_are_whole_for_predict_and_evaluate() -> None:
    cells = table.chosen()
    assert table.all_pairs().keys() == {pair for cell in cells for pair in table.pairs_of(cell)}
    for call in table.WHOLE:
        sizes = {(one.kind, one.rows, one.batch) for one in table.possible() if one.call == call}
        assert {(one.kind, one.rows, one.batch) for one in cells if one.call == call} == sizes
