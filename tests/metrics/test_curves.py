"""A curve keeps its ends and its spikes, however few points are drawn."""

from __future__ import annotations

import math

import pyarrow as pa

from raydist.metrics.curves import curves


def table(lines: list[tuple[int, str, float | None]]) -> pa.Table:
    steps, tasks, values = zip(*lines, strict=True)
    return pa.table(
        {
            "step": steps,
            "epoch": pa.nulls(len(steps), pa.int32()),
            "task": pa.array(tasks).dictionary_encode(),
            "loss": pa.array(values, pa.float64()),
        }
    )


def test_few_points_stay_as_they_are() -> None:
    found = curves(
        table([(1, "worker/0", 2.0), (2, "worker/0", None), (5, "worker/0", 1.0)]), num_buckets=100
    )
    assert found == {("loss", "worker/0"): [(1, 2.0), (5, 1.0)]}


def test_spike_among_many_points_stays() -> None:
    lines = [(step, "worker/0", 9.0 if step == 61_803 else step / 1e6) for step in range(100_000)]
    [points] = curves(table(lines), num_buckets=50).values()
    assert (61_803, 9.0) in points
    assert (points[0][0], points[-1][0]) == (0, 99_999)
    assert len(points) <= 4 * 50
    assert points == sorted(points)


def test_steps_with_gaps_are_thinned_by_step() -> None:
    lines = [(step, "worker/0", 0.0) for step in range(1000)] + [(10**9 + 1, "worker/0", 1.0)]
    [points] = curves(table(lines), num_buckets=10).values()
    assert points == [(0, 0.0), (999, 0.0), (10**9 + 1, 1.0)]  # flat, then a jump


def test_each_task_has_a_curve_and_what_is_no_number_is_left_out() -> None:
    lines = [(1, "worker/1", math.nan), (1, "worker/0", 1.0), (2, "worker/1", math.inf), (2, "worker/0", 2.0)]
    assert curves(table(lines), num_buckets=10) == {("loss", "worker/0"): [(1, 1.0), (2, 2.0)]}
