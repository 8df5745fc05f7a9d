from __future__ import annotations

from collections.abc import Mapping

import pytest

from raydist.spec.best import Best, best_of, better


def best_after(*reports: Mapping[str, float], keep_best: str | None = None) -> Best | None:
    best = None
    for number, metrics in enumerate(reports, start=1):
        best = best_of(best, metrics, step=10 * number, keep_best=keep_best)
    return best


@pytest.mark.parametrize(
    ("reports", "keep_best", "expected"),
    [
        pytest.param([{"loss": 2.0}, {"loss": 1.0}, {"loss": 1.5}], None, ("loss", 1.0, 20), id="least-loss"),
        pytest.param([{"accuracy": 0.5}, {"accuracy": 0.25}], None, ("accuracy", 0.5, 10), id="most"),
        pytest.param([{"loss": 1.0}, {"loss": 1.0}], None, ("loss", 1.0, 10), id="earliest"),
        pytest.param(
            [{"loss": 0.1}, {"loss": 2.0, "val_loss": 3.0}], None, ("val_loss", 3.0, 20), id="val_loss-wins"
        ),
        pytest.param(
            [{"val_loss": 3.0}, {"loss": 0.1}], None, ("val_loss", 3.0, 10), id="loss-does-not-replace"
        ),
        pytest.param(
            [{"loss": 1.0, "auc": 0.5}, {"loss": 0.5, "auc": 0.7}], "auc", ("auc", 0.7, 20), id="keep_best"
        ),
        pytest.param([{"loss": float("nan")}, {"loss": 2.0}], None, ("loss", 2.0, 20), id="nan"),
        pytest.param([{"norm": 4.0}, {"norm": 5.0, "z": 1.0}], None, ("norm", 5.0, 20), id="first-metric"),
    ],
)
def test_best_value_of_a_run(
    reports: list[Mapping[str, float]], keep_best: str | None, expected: tuple[str, float, int]
) -> None:
    name, value, step = expected
    assert best_after(*reports, keep_best=keep_best) == Best(name=name, value=value, step=step)


@pytest.mark.parametrize("reports", [[], [{}], [{"loss": float("inf")}]], ids=["none", "empty", "infinite"])
def test_without_a_finite_value_there_is_no_best(reports: list[Mapping[str, float]]) -> None:
    assert best_after(*reports) is None


def test_new_attempt_does_not_lose_the_best_of_the_one_before() -> None:
    before, after = Best(name="loss", value=1.0, step=50), Best(name="loss", value=1.5, step=40)
    assert better(before, after) == before
    assert better(Best(name="val_loss", value=3.0, step=50), after).name == "val_loss"
    assert better(before, Best(name="auc", value=0.5, step=60)).name == "auc"
