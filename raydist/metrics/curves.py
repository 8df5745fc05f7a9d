"""The curve of each metric: merged from several attempts, as a table, as arrays, and thinned to be drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raydist.outcome.status import Scope
from raydist.spec.tasks import TaskId

Numbers = npt.NDArray[Any]
MetricTable: TypeAlias = "pa.Table"  # as `as_table` returns it

# The columns of a table before those of the metrics.
FIXED_COLUMNS = ("step", "epoch", "task")


def merge(rows: pa.Table, *, each_attempt: bool = False) -> pa.Table:
    """Returns one row for each (task, step, name): the highest attempt's, and of that the last.

    Steps that a later attempt has not reached again stay as the earlier one reported them. Sorted
    by step, then task and name.

    Args:
      rows: Of one scope, with `reading.COLUMNS`, in the order in which they were reported.
      each_attempt: Returns a row for each attempt that has one instead, in their order.
    """
    step, task, name = _numbers(rows, "step"), _rank(rows, "task"), _rank(rows, "name")
    # Stable: of equal rows the last reported is the last.
    attempt = _numbers(rows, "attempt")
    order = np.lexsort((_numbers(rows, "wall_time"), attempt, name, task, step))
    keys = (step, task, name, attempt) if each_attempt else (step, task, name)
    is_last = _differs_from_next(*(key[order] for key in keys))
    return rows.take(pa.array(order[is_last]))


def as_table(rows: pa.Table) -> MetricTable:
    """Returns the merged rows with one line per step and task, and a column per metric.

    The columns are `FIXED_COLUMNS`, then the metrics' names, sorted; null where a task reported no such
    metric at that step.

    Args:
      rows: As `merge` takes them.
    """
    merged = merge(rows)
    step, task, name = _numbers(merged, "step"), _rank(merged, "task"), _rank(merged, "name")
    is_line_end = _differs_from_next(step, task)
    line: Numbers = np.cumsum(is_line_end) - is_line_end
    lines = merged.filter(pa.array(is_line_end)).select(["step", "task"])
    num_lines, value = lines.num_rows, _numbers(merged, "value")
    columns = [lines["step"], _epochs(merged, line, num_lines), lines["task"]]
    names = _sorted_words(merged, "name")
    columns += [_spread(value[name == rank], line[name == rank], num_lines) for rank in range(len(names))]
    return pa.Table.from_arrays(columns, names=[*FIXED_COLUMNS, *names])


def _epochs(merged: pa.Table, line: Numbers, num_lines: int) -> pa.Array:
    """Returns each line's epoch: where its metrics tell several, that of the last by name."""
    is_known = pc.is_valid(merged["epoch"]).to_numpy()
    known = merged["epoch"].drop_null().to_numpy()
    return _spread(known, line[is_known], num_lines)


def _spread(values: Numbers, line: Numbers, num_lines: int) -> pa.Array:
    """Returns an array with each value at its line, the last one where a line has several; else null."""
    spread, is_null = np.zeros(num_lines, values.dtype), np.ones(num_lines, bool)
    spread[line], is_null[line] = values, False
    return pa.array(spread, mask=is_null)


def _differs_from_next(*columns: Numbers) -> npt.NDArray[np.bool_]:
    """Returns for each row whether the next one differs in any of the columns; True for the last."""
    differs = np.ones(len(columns[0]), bool)
    if len(differs):
        differs[:-1] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _numbers(rows: pa.Table, column: str) -> Numbers:
    numbers: Numbers = rows[column].to_numpy()
    return numbers


def _rank(rows: pa.Table, column: str) -> Numbers:
    """Returns for each row the place of its word among the column's words, sorted."""
    words = _words(rows, column)
    place = {word: number for number, word in enumerate(_sorted_words(rows, column))}
    ranks = np.array([place[word] for word in words], np.int32)
    numbers = [chunk.indices.to_numpy() for chunk in rows[column].chunks]  # of at most one
    ranked: Numbers = ranks[np.concatenate([np.empty(0, np.int32), *numbers])]
    return ranked


def _sorted_words(rows: pa.Table, column: str) -> list[str]:
    words = _words(rows, column)
    return sorted(words, key=_task_order) if column == "task" else sorted(words)


def _words(rows: pa.Table, column: str) -> list[str]:
    """Returns the different words of a column of `reading.COLUMNS`."""
    chunks = rows[column].chunks
    words: list[str] = chunks[0].dictionary.to_pylist() if chunks else []
    return words


def _task_order(task: str) -> tuple[str, int]:
    parsed = TaskId.parse(task)
    return parsed.task_type.value, parsed.index


Points = list[tuple[int, float]]


def curves(table: MetricTable, *, num_buckets: int) -> dict[tuple[str, str], Points]:
    """Returns the points `(step, value)` of each (metric, task), by step.

    Of each of `num_buckets` equal ranges of steps the first, last, lowest and highest point stay, so that the
    line looks the same and a single spike among a million values is still there. What is not a finite number
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
