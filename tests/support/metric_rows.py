"""Metrics row by row, as plain Python: what the columns of raydist.metrics are compared with."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from raydist.metrics.parquet import SCHEMA, MetricsWriter
from raydist.outcome.status import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage

Line = tuple[int | float | str | None, ...]


def row(
    *,
    step: int,
    value: float,
    attempt: int = 0,
    task: str = "worker/0",
    name: str = "loss",
    scope: Scope = Scope.GLOBAL,
    epoch: int | None = None,
    wall_time: float = 0.0,
) -> MetricRow:
    """Makes a row of the run `first`."""
    return MetricRow(
        run="first",
        attempt=attempt,
        task=TaskId.parse(task),
        step=step,
        epoch=epoch,
        wall_time=wall_time,
        scope=scope,
        name=name,
        value=value,
    )


def read_rows(storage: RunStorage) -> list[MetricRow]:
    """Returns every stored row of every attempt, in the order of the files' names."""
    keys = [f"{storage.metrics}/{name}" for name in storage.list_names(storage.metrics)]
    return [_as_row(record) for key in keys for record in _records(storage.read_bytes(key))]


def store_rows(storage: RunStorage, rows: Iterable[MetricRow]) -> None:
    """Writes rows as their tasks do: a file for each task and attempt, the rows in their order."""
    files: dict[tuple[TaskId, int], list[MetricRow]] = {}
    for row in rows:
        files.setdefault((row.task, row.attempt), []).append(row)
    for (task, attempt), reported in files.items():
        writer = MetricsWriter.open(storage, task=task, attempt=attempt)
        writer.append(reported)
        writer.flush()


def merge_rows(rows: Iterable[MetricRow]) -> list[MetricRow]:
    """Returns one row for each (task, step, name, scope): the highest attempt's, and of that the last."""
    newest: dict[tuple[object, ...], MetricRow] = {}
    for row in rows:
        key = (row.task, row.step, row.name, row.scope)
        rival = newest.get(key)
        if rival is None or (row.attempt, row.wall_time) >= (rival.attempt, rival.wall_time):
            newest[key] = row
    return sorted(newest.values(), key=_order)


def lines_of(rows: Iterable[MetricRow], *, scope: Scope) -> tuple[tuple[str, ...], list[Line]]:
    """Returns the columns, and a line for each step and task, of the merged rows of one scope."""
    merged = [row for row in merge_rows(rows) if row.scope is scope]
    names = sorted({row.name for row in merged})
    values: dict[tuple[int, str], dict[str, float]] = {}
    epochs: dict[tuple[int, str], int | None] = {}
    for row in merged:
        place = (row.step, str(row.task))
        values.setdefault(place, {})[row.name] = row.value
        epochs[place] = row.epoch if row.epoch is not None else epochs.get(place)
    return ("step", "epoch", "task", *names), [
        (step, epochs[step, task], task, *(values[step, task].get(name) for name in names))
        for step, task in values
    ]


def _records(content: bytes) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = pq.read_table(io.BytesIO(content), schema=SCHEMA).to_pylist()
    return records


def _as_row(record: dict[str, Any]) -> MetricRow:
    return MetricRow(**{**record, "task": TaskId.parse(record["task"]), "scope": Scope(record["scope"])})


def _order(row: MetricRow) -> tuple[int, str, int, str, str]:
    return (row.step, row.task.task_type.value, row.task.index, row.name, row.scope.value)
