"""Several attempts make one curve, and a table of it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from raydist.metrics.curves import as_table, merge
from raydist.outcome.status import MetricRow, Scope
from tests.metrics.conftest import Columns
from tests.support.metric_rows import lines_of, row


def test_later_attempt_replaces_the_steps_that_it_repeats_and_no_other(columns: Columns) -> None:
    first = [row(step=step, value=step, attempt=0) for step in (1, 2, 3, 4)]
    second = [row(step=step, value=step + 0.5, attempt=1) for step in (2, 3)]
    merged = merge(columns([*second, *first]))
    assert merged.select(["step", "value"]).to_pylist() == [
        {"step": 1, "value": 1},
        {"step": 2, "value": 2.5},
        {"step": 3, "value": 3.5},
        {"step": 4, "value": 4},
    ]


def test_tenth_attempt_is_later_than_the_second(columns: Columns) -> None:
    rows = [row(step=1, value=attempt, attempt=attempt) for attempt in (2, 10)]
    assert merge(columns(rows))["value"].to_pylist() == [10]


@pytest.mark.parametrize(
    "change", [{"task": "worker/1"}, {"step": 2}, {"name": "accuracy"}], ids=["task", "step", "name"]
)
def test_rows_that_differ_in_task_step_or_name_stand_side_by_side(
    columns: Columns, change: dict[str, Any]
) -> None:
    rows = [row(step=1, value=0.5), row(**{"step": 1, "value": 0.75, "attempt": 1, **change})]
    assert merge(columns(rows)).num_rows == 2


def test_value_of_another_scope_is_not_read(columns: Columns) -> None:
    rows = [row(step=1, value=0.5), row(step=1, value=0.75, attempt=1, scope=Scope.LOCAL)]
    assert merge(columns(rows))["value"].to_pylist() == [0.5]


def test_later_report_of_one_attempt_replaces_the_earlier(columns: Columns) -> None:
    rows = [row(step=1, value=0.5, wall_time=2.0), row(step=1, value=0.75, wall_time=1.0)]
    assert merge(columns(rows))["value"].to_pylist() == [0.5]


def test_last_of_two_reports_at_one_time_stays(columns: Columns) -> None:
    rows = [row(step=1, value=0.5), row(step=1, value=0.75)]
    assert merge(columns(rows))["value"].to_pylist() == [0.75]


def test_merged_rows_are_sorted_by_step_task_and_name(columns: Columns) -> None:
    rows = [
        row(step=2, value=0),
        row(step=1, value=0, task="worker/10"),
        row(step=1, value=0, task="worker/9"),
        row(step=1, value=0, task="worker/9", name="accuracy"),
    ]
    merged = merge(columns(rows)).to_pylist()
    assert [(each["step"], each["task"], each["name"]) for each in merged] == [
        (1, "worker/9", "accuracy"),
        (1, "worker/9", "loss"),
        (1, "worker/10", "loss"),
        (2, "worker/0", "loss"),
    ]


def test_table_has_a_line_per_step_and_task_and_a_column_per_metric(columns: Columns) -> None:
    rows = [
        row(step=20, value=0.4, epoch=2),
        row(step=10, value=0.5, epoch=1),
        row(step=10, value=0.9, epoch=1, name="accuracy"),
        row(step=10, value=0.6, epoch=1, attempt=1),
        row(step=10, value=7, name="local_only", scope=Scope.LOCAL),
    ]
    assert as_table(columns(rows)).to_pylist() == [
        {"step": 10, "epoch": 1, "task": "worker/0", "accuracy": 0.9, "loss": 0.6},
        {"step": 20, "epoch": 2, "task": "worker/0", "accuracy": None, "loss": 0.4},
    ]


def test_table_of_local_values_has_a_line_per_task(columns: Columns) -> None:
    rows = [row(step=5, value=index, task=f"worker/{index}", scope=Scope.LOCAL) for index in (1, 0)]
    assert as_table(columns(rows, scope=Scope.LOCAL)).to_pylist() == [
        {"step": 5, "epoch": None, "task": "worker/0", "loss": 0},
        {"step": 5, "epoch": None, "task": "worker/1", "loss": 1},
    ]


def test_table_without_rows_has_only_the_fixed_columns(columns: Columns) -> None:
    table = as_table(columns([]))
    assert (table.column_names, table.num_rows) == (["step", "epoch", "task"], 0)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("seed", range(5))
def test_columns_say_what_the_rows_say_one_by_one(columns: Columns, seed: int, scope: Scope) -> None:
    rows = random_rows(random.Random(seed))
    names, lines = lines_of(rows, scope=scope)
    table = as_table(columns(rows, scope=scope))
    found = [tuple(line.values()) for line in table.to_pylist()]
    assert tuple(table.column_names) == names
    assert repr(found) == repr(lines)  # NaN equals no NaN


def random_rows(numbers: random.Random) -> list[MetricRow]:
    """Makes rows with many of one key, at equal times too, whose epochs and values lack here and there."""
    return [
        row(
            step=numbers.choice([0, 1, 2, 3, 2**62]),
            value=numbers.choice([math.nan, math.inf, 1.0, numbers.random()]),
            attempt=numbers.randrange(12),
            task=numbers.choice(["worker/0", "worker/10", "worker/9", "chief/0"]),
            name=numbers.choice(["loss", "accuracy", "épreuve"]),
            scope=numbers.choice(list(Scope)),
            epoch=numbers.choice([None, 1, 2]),
            wall_time=float(numbers.randrange(3)),
        )
        for _ in range(400)
    ]
