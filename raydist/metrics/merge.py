"""Makes one curve of what several attempts reported, and a table of the curve, column by column."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
