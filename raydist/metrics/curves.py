"""The points of each metric's curve, thinned to what can be seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from raydist.metrics.merge import FIXED_COLUMNS, MetricTable

Points = list[tuple[int, float]]


def curves(table: MetricTable, *, num_buckets: int) -> dict[tuple[str, str], Points]:
    """Returns the points `(step, value)` of each (metric, task), by step.

    Of each of `num_buckets` equal ranges of steps the first, last, lowest and highest point stay, so that the
    line looks the same and a single spike among a million values is still there. What is no finite number
    is left out, and so is a curve without any.
    """
    table = table.combine_chunks()
    steps = table["step"].to_numpy()
    found: dict[tuple[str, str], Points] = {}
    for place, name in enumerate(table.column_names[len(FIXED_COLUMNS) :], start=len(FIXED_COLUMNS)):
        values = pc.fill_null(table.column(place), float("nan")).to_numpy()
        for task, lines in _lines_by_task(table):
            kept = lines[np.isfinite(values[lines])]
            if len(kept):
                thin = kept[_extremes(steps[kept], values[kept], num_buckets)]
                pairs = zip(steps[thin].tolist(), values[thin].tolist(), strict=True)
                found[name, task] = list(pairs)
    return found


def _lines_by_task(table: MetricTable) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yields each task, the first to report first, with the numbers of its lines."""
    for chunk in table["task"].chunks:  # at most one
        numbers, words = chunk.indices.to_numpy(), chunk.dictionary.to_pylist()
        for number in pc.unique(chunk.indices).to_pylist():
            yield words[number], np.flatnonzero(numbers == number)


def _extremes(
    steps: npt.NDArray[Any], values: npt.NDArray[Any], num_buckets: int
) -> npt.NDArray[np.intp] | slice:
    """Returns which points stay, ascending; `steps` are ascending."""
    if len(steps) <= 4 * num_buckets:
        return slice(None)
    edges = np.linspace(steps[0], steps[-1], num_buckets + 1)[:-1]
    starts = np.unique(np.searchsorted(steps, edges))
    ends = np.append(starts[1:], len(steps))
    buckets = list(zip(starts.tolist(), ends.tolist(), strict=True))
    lowest = [start + int(np.argmin(values[start:end])) for start, end in buckets]
    highest = [start + int(np.argmax(values[start:end])) for start, end in buckets]
    return np.unique(np.concatenate([starts, ends - 1, lowest, highest]))
