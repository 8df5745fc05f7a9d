from __future__ import annotations

from raydist.cli.commands.metrics import charts

Curves = dict[tuple[str, str], list[tuple[int, float]]]


def test_validation_is_drawn_beside_its_metric() -> None:
    curves: Curves = {
        ("accuracy", "worker/0"): [(10, 0.5), (20, 0.75)],
        ("loss", "worker/0"): [(10, 2.0), (20, 1.0)],
        ("val_loss", "worker/0"): [(20, 1.5)],
    }
    accuracy, loss = charts(curves, width=60, height=12)
    assert "accuracy" in accuracy
    assert "loss" not in accuracy
    assert {"loss", "val_loss"} <= set(loss.split())
    assert "x" in loss.replace("val_loss", "")  # the one point of validation


def test_falling_values_are_drawn_falling() -> None:
    points = [(step, 100.0 - step) for step in range(100)]
    [chart] = charts({("loss", "worker/0"): points}, width=60, height=12)
    rows = [line.partition("┤")[2] or line.partition("│")[2] for line in chart.splitlines()[1:-3]]
    firsts = [next(place for place, mark in enumerate(row) if mark > "⠀") for row in rows[2:]]
    assert firsts == sorted(firsts)
    assert chart.splitlines()[-2].split()[0] == "0.0"
    assert "99.0" in chart.splitlines()[-2]


def test_each_task_has_a_curve_of_its_own() -> None:
    curves: Curves = {("loss", "worker/0"): [(10, 0.5)], ("loss", "worker/1"): [(10, 0.7)]}
    [chart] = charts(curves, width=60, height=12)
    assert "loss of worker/0" in chart
    assert "loss of worker/1" in chart


def test_values_that_no_chart_can_hold_are_left_out() -> None:
    curves: Curves = {("loss", "worker/0"): [(1, 1e308), (2, 0.5), (2**63, 1.5), (4, -1e308)]}
    [chart] = charts(curves, width=60, height=12)
    assert "1.5" in chart
    assert charts({("loss", "worker/0"): [(1, 1e308)]}, width=60, height=12) == []
