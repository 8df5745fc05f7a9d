"""The curve of each metric and task as arrays, whole or thinned: what a page draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raydist.metrics.merge import merge
from raydist.metrics.records import Scope

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one task by step: the curve of the run, or what an attempt reported that was repeated.

    Attributes:
      task: Such as worker/0.
      steps: int64, ascending.
      times: Unix times in seconds at which the values were reported.
      values: float64, NaN and infinities included.
      attempts: The attempt that each value is of.
      is_repeated: Whether these are values of an attempt from the step on where a later one continued. The
        first is the last one before that step, which the curve of the run has too.
    """

    scope: Scope
    name: str
    task: str
    steps: Numbers
    times: Numbers
    values: Numbers
    attempts: Numbers
    is_repeated: bool = False

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, points: Numbers) -> Series:
        """Returns it with these points alone; a mask or ascending indices."""
        return dataclasses.replace(
            self,
            steps=self.steps[points],
            times=self.times[points],
            values=self.values[points],
            attempts=self.attempts[points],
        )


def series_of(rows: pa.Table, *, scope: Scope) -> list[Series]:
    """Returns the curves of the rows of one scope, by metric, then by task, then what was repeated of it.

    Each attempt's values lead to the first step of a later one. What is beyond it is a series of its own.
    Tasks report their own values at most twice a second, so those of two attempts seldom have the same steps,
    and taking the highest attempt's value of each step would mix them.

    Args:
      rows: As `merge` takes them.
    """
    merged = merge(rows, each_attempt=True)
    columns = {name: merged[name].to_numpy() for name in ("step", "wall_time", "value", "attempt")}
    return [
        one
        for name, task, lines in _groups(merged)
        for one in _split(
            Series(
                scope=scope,
                name=name,
                task=task,
                steps=columns["step"][lines],
                times=columns["wall_time"][lines],
                values=columns["value"][lines],
                attempts=columns["attempt"][lines],
            )
        )
    ]


def _split(series: Series) -> Iterator[Series]:
    """Yields the curve of the run, then for each attempt what a later one has repeated or will."""
    attempts = np.unique(series.attempts).tolist()
    own = {attempt: np.flatnonzero(series.attempts == attempt) for attempt in attempts}
    is_beyond, repeated = np.zeros(len(series), bool), []
    for place, attempt in enumerate(attempts[:-1]):
        end = min(series.steps[own[later][0]] for later in attempts[place + 1 :])
        num_kept = int(np.searchsorted(series.steps[own[attempt]], end))
        is_beyond[own[attempt][num_kept:]] = True
        if num_kept < len(own[attempt]):
            part = series.take(own[attempt][max(0, num_kept - 1) :])
            repeated.append(dataclasses.replace(part, is_repeated=True))
    yield series.take(~is_beyond)
    yield from repeated


def thinned(series: Series, *, num_points: int) -> Series:
    """Returns about `num_points` of its points: the lowest and highest of equal stretches, and both ends.

    A single spike among a million values is still there.
    """
    if len(series) <= num_points:
        return series
    width = -(-2 * len(series) // num_points)
    # The last stretch is filled up with NaN; one of NaN alone keeps its first point.
    values = np.pad(series.values, (0, -len(series) % width), constant_values=np.nan).reshape(-1, width)
    starts = np.arange(len(values)) * width
    lowest = starts + np.where(np.isnan(values), np.inf, values).argmin(axis=1)
    highest = starts + np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
    return series.take(np.unique(np.concatenate([[0, len(series) - 1], lowest, highest])))


def _groups(merged: pa.Table) -> Iterator[tuple[str, str, Numbers]]:
    """Yields each name and task with the numbers of its lines, ascending."""
    if not merged.num_rows:
        return
    name, task = merged["name"].combine_chunks(), merged["task"].combine_chunks()
    names, tasks = name.dictionary.to_pylist(), task.dictionary.to_pylist()
    key = name.indices.to_numpy().astype(np.int64) * len(tasks) + task.indices.to_numpy()
    order = np.argsort(key, kind="stable")
    found, starts = np.unique(key[order], return_index=True)
    groups = zip(found.tolist(), np.split(order, starts[1:]), strict=True)
    named = [(names[number // len(tasks)], tasks[number % len(tasks)], lines) for number, lines in groups]
    yield from sorted(named, key=lambda group: group[:2])
