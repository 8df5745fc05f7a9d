from __future__ import annotations

import numpy as np

from raydist.metrics.curves import Series, series_of, thinned
from raydist.metrics.reading import read_columns
from raydist.outcome.status import Scope
from raydist.storage.run_storage import RunStorage
from tests.support.metric_rows import row, store_rows


def read(storage: RunStorage) -> list[Series]:
    return series_of(read_columns(storage, scope=Scope.GLOBAL), scope=Scope.GLOBAL)


def values_of(series: list[Series]) -> dict[tuple[str, str], list[tuple[int, float, int]]]:
    return {(one.name, one.task): points_of(one) for one in series if not one.is_repeated}


def points_of(series: Series) -> list[tuple[int, float, int]]:
    columns = (series.steps, series.values, series.attempts)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_curve_of_each_metric_and_task(storage: RunStorage) -> None:
    rows = [row(step=step, value=step, name="loss") for step in (2, 1, 3)]
    rows += [row(step=1, value=7, name="accuracy"), row(step=1, value=9, task="evaluator/0")]
    store_rows(storage, rows)
    assert values_of(read(storage)) == {
        ("accuracy", "worker/0"): [(1, 7.0, 0)],
        ("loss", "evaluator/0"): [(1, 9.0, 0)],
        ("loss", "worker/0"): [(1, 1.0, 0), (2, 2.0, 0), (3, 3.0, 0)],
    }


def test_what_a_later_attempt_repeats_is_a_series_of_its_own_that_begins_at_the_curve(
    storage: RunStorage,
) -> None:
    rows = [row(step=step, value=step) for step in (2, 4, 6, 8)]
    rows += [row(step=step, value=-step, attempt=1) for step in (5, 7)]
    rows += [row(step=step, value=10 * step, attempt=2) for step in (7, 9)]
    store_rows(storage, rows)
    curve, first, second = read(storage)
    assert points_of(curve) == [(2, 2, 0), (4, 4, 0), (5, -5, 1), (7, 70, 2), (9, 90, 2)]
    assert points_of(first) == [(4, 4, 0), (6, 6, 0), (8, 8, 0)]
    assert points_of(second) == [(5, -5, 1), (7, -7, 1)]
    assert [one.is_repeated for one in (curve, first, second)] == [False, True, True]


def test_attempt_that_begins_at_the_first_step_again_leaves_nothing_of_the_one_before(
    storage: RunStorage,
) -> None:
    store_rows(storage, [row(step=3, value=1), row(step=2, value=5, attempt=1)])
    curve, before = read(storage)
    assert (points_of(curve), points_of(before)) == ([(2, 5, 1)], [(3, 1, 0)])


def test_run_without_metrics_has_no_curves(storage: RunStorage) -> None:
    assert read(storage) == []


def test_thinned_curve_keeps_peaks_ends_and_its_length() -> None:
    values = np.zeros(10_001)
    values[[4321, 8765]] = 5.0, -5.0
    values[:5000:7] = np.nan
    steps = np.arange(len(values))
    whole = Series(
        scope=Scope.LOCAL,
        name="loss",
        task="worker/0",
        steps=steps,
        times=steps / 10,
        values=values,
        attempts=steps * 0,
    )
    few = thinned(whole, num_points=100)
    assert {0, 4321, 8765, 10_000} <= set(few.steps.tolist())
    assert len(few) <= 110
    assert (np.diff(few.steps) > 0).all()
    assert thinned(few, num_points=200) is few
