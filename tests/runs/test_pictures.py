"""Pictures are SVG files that a browser reads, with what was measured in its place."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import pytest

from raydist.runs.pictures import loss_picture, scaling_picture
from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import LossCurve, StrategyRun

SVG = "{http://www.w3.org/2000/svg}"


def run(workers: int, examples_per_s: float | None, **facts: Any) -> Measurement:
    known: dict[str, Any] = {"strategy": "multi_worker_mirrored", **facts}
    name = f"{workers} workers"
    return Measurement(
        name=name, run="a", state="CANCELLED", workers=workers, examples_per_s=examples_per_s, **known
    )


ALONE = run(1, 1000.0)


def texts_of(root: ElementTree.Element) -> list[str]:
    return [str(one.text) for one in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("runs", [[ALONE], [ALONE, run(2, 1500.0, input_wait=0.5), run(4, None)]])
def test_scaling_has_a_point_and_a_bar_for_each_run(runs: list[Measurement]) -> None:
    root = ElementTree.fromstring(scaling_picture("a <job> & more", ALONE, runs))
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f"{SVG}circle")) == len(runs)
    assert "a <job> & more" in texts_of(root)
    bars = [one for one in root.iter(f"{SVG}rect") if one.get("width") not in ("100%", "10")]
    assert len(bars) == 3 * len(runs)


def trained(name: str, losses: Sequence[float | None], batch: int | None = 8) -> StrategyRun:
    steps = range(1, len(losses) + 1)
    curve = LossCurve(steps=steps, seconds=[0.5 * step for step in steps], losses=losses)
    return StrategyRun(measurement=run(2, 1.0, strategy=name, batch=batch), curve=curve, staleness=0)


def lines_of(root: ElementTree.Element) -> list[list[tuple[float, ...]]]:
    points = [one.get("points", "").split() for one in root.iter(f"{SVG}polyline")]
    return [[tuple(map(float, point.split(","))) for point in line] for line in points]


def test_losses_are_drawn_by_examples_and_by_seconds() -> None:
    root = ElementTree.fromstring(loss_picture("a", [trained("x", [4.0, 2.0, 1.0]), trained("y", [2.0])]))
    by_examples, short, by_seconds, _ = lines_of(root)
    for line in (by_examples, by_seconds):
        # Halves are as far apart everywhere, and the curve falls from the top to the bottom.
        assert [y for _, y in line] == [34.0, 144.0, 254.0]
        assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.2)
    assert short == [(by_examples[0][0], 144.0)]
    assert {"x", "y", "loss by examples", "24", "1.5"} <= {*texts_of(root)}


@pytest.mark.parametrize("losses", [[], [None], [math.nan, -1.0, 0.0], [1.0], [1.0, 1.0]])
def test_losses_that_cannot_be_drawn_leave_the_picture_whole(losses: list[float | None]) -> None:
    root = ElementTree.fromstring(loss_picture("a", [trained("x", losses, batch=None)]))
    assert "loss by steps" in texts_of(root)
    assert all(math.isfinite(x) for line in lines_of(root) for point in line for x in point)


def test_long_curve_is_thinned_out_and_keeps_its_end() -> None:
    root = ElementTree.fromstring(loss_picture("a", [trained("x", [1 / step for step in range(1, 5001)])]))
    line = lines_of(root)[0]
    assert len(line) <= 202
    assert line[-1] == (346.0, 254.0)
