from __future__ import annotations

import math

from raydist.cli.curves import charts
from raydist.metrics.merge import MetricTable


def table(*names: str, lines: list[tuple[int, str, list[float | None]]]) -> MetricTable:
    return MetricTable(
        columns=("step", "epoch", "task", *names),
        lines=tuple((step, None, task, *values) for step, task, values in lines),
    )


def test_validation_is_drawn_beside_its_metric() -> None:
    lines = [(10, "worker/0", [0.5, 2.0, None]), (20, "worker/0", [0.75, 1.0, 1.5])]
    accuracy, loss = charts(table("accuracy", "loss", "val_loss", lines=lines), width=60, height=12)
    assert "accuracy" in accuracy
    assert "loss" not in accuracy
    assert {"loss", "val_loss"} <= set(loss.split())
    assert "x" in loss.replace("val_loss", "")  # the one point of validation


def test_falling_values_are_drawn_falling() -> None:
    lines = [(step, "worker/0", [100.0 - step]) for step in range(100)]
    [chart] = charts(table("loss", lines=lines), width=60, height=12)
    rows = [line.partition("┤")[2] or line.partition("│")[2] for line in chart.splitlines()[1:-3]]
    firsts = [next(place for place, mark in enumerate(row) if mark > "⠀") for row in rows[2:]]
    assert firsts == sorted(firsts)
    assert chart.splitlines()[-2].split()[0] == "0.0"
    assert "99.0" in chart.splitlines()[-2]


def test_each_task_has_a_curve_of_its_own() -> None:
    lines = [(10, "worker/0", [0.5]), (10, "worker/1", [0.7])]
    [chart] = charts(table("loss", lines=lines), width=60, height=12)
    assert "loss of worker/0" in chart
    assert "loss of worker/1" in chart


def test_what_is_no_number_is_left_out() -> None:
    lines = [(10, "worker/0", [math.nan, math.inf]), (20, "worker/0", [1.0, -math.inf])]
    [chart] = charts(table("loss", "rate", lines=lines), width=60, height=12)
    assert "loss" in chart
