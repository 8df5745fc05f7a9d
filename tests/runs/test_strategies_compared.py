"""Losses of several strategies are compared where all runs have been."""

from __future__ import annotations

import pytest

from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import LossCurve, StrategyRun, compared, staleness
from raydist.spec.job import Strategy

SYNC = LossCurve(steps=[10, 20, 30], seconds=[0.0, 1.0, 2.0], losses=[3.0, 2.0, 1.0])
ASYNC = LossCurve(steps=[20, 50, 80], seconds=[0.0, 0.5, 1.5], losses=[2.9, 2.4, 1.9])


def run(name: str, curve: LossCurve, *, batch: int | None = 8) -> StrategyRun:
    measurement = Measurement(name=name, run=name, state="CANCELLED", strategy=name, workers=2, batch=batch)
    return StrategyRun(measurement=measurement, curve=curve, staleness=0)


def test_losses_are_those_at_equal_examples_and_at_equal_time() -> None:
    found = compared([run("a", SYNC), run("b", ASYNC)])
    assert (found["examples"], found["seconds"]) == (240, 1.5)
    assert [one["loss_at_equal_examples"] for one in found["runs"]] == [1.0, 2.9]
    assert [one["loss_at_equal_time"] for one in found["runs"]] == [2.0, 1.9]


def test_run_without_a_loss_or_a_batch_does_not_keep_others_from_being_compared() -> None:
    found = compared([run("a", SYNC), run("b", LossCurve()), run("c", ASYNC, batch=None)])
    assert (found["examples"], found["seconds"]) == (240, 1.5)
    assert [one["loss_at_equal_examples"] for one in found["runs"]] == [1.0, None, None]
    assert [one["loss_at_equal_time"] for one in found["runs"]] == [2.0, None, 1.9]
    nothing = compared([run("b", LossCurve())])
    assert (nothing["examples"], nothing["seconds"]) == (None, None)


@pytest.mark.parametrize(
    ("strategy", "workers", "expected"),
    [
        (Strategy.MULTI_WORKER_MIRRORED, 4, 0),
        (Strategy.PARAMETER_SERVER, 1, 0),
        (Strategy.PARAMETER_SERVER, 4, 3),
    ],
)
def test_staleness(strategy: Strategy, workers: int, expected: int) -> None:
    assert staleness(strategy, workers=workers) == expected
