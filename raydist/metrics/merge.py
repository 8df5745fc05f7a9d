"""Makes one curve of what several attempts reported, and a table of the curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raydist.metrics.records import MetricRow, Scope


@dataclass(frozen=True, kw_only=True)
class MetricTable:
    """Metrics with one line per step and task.

    Attributes:
      columns: `step`, `epoch`, `task`, then the metrics' names, sorted.
      lines: Values in the columns' order; None where a task reported no such metric at that step.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[int | float | str | None, ...], ...]


def merge_rows(rows: Iterable[MetricRow]) -> list[MetricRow]:
    """Returns one row for each (task, step, name, scope): the highest attempt's, and of that the last.

    Steps that a later attempt has not reached again stay as the earlier one reported them. Sorted
    by step, then task, name and scope.
    """
    newest: dict[tuple[object, ...], MetricRow] = {}
    for row in rows:
        key = (row.task, row.step, row.name, row.scope)
        rival = newest.get(key)
        if rival is None or (row.attempt, row.wall_time) >= (rival.attempt, rival.wall_time):
            newest[key] = row
    return sorted(newest.values(), key=_order)


def as_table(rows: Iterable[MetricRow], *, scope: Scope = Scope.GLOBAL) -> MetricTable:
    """Returns the merged rows of one scope with a column per metric."""
    merged = [row for row in merge_rows(rows) if row.scope is scope]
    names = sorted({row.name for row in merged})
    values: dict[tuple[int, str], dict[str, float]] = {}
    epochs: dict[tuple[int, str], int | None] = {}
    for row in merged:
        place = (row.step, str(row.task))
        values.setdefault(place, {})[row.name] = row.value
        epochs[place] = row.epoch if row.epoch is not None else epochs.get(place)
    return MetricTable(
        columns=("step", "epoch", "task", *names),
        lines=tuple(
            (step, epochs[step, task], task, *(values[step, task].get(name) for name in names))
            for step, task in values
        ),
    )


def _order(row: MetricRow) -> tuple[int, str, int, str, str]:
    return (row.step, row.task.task_type.value, row.task.index, row.name, row.scope.value)
