"""Which trial is best, and how far equal trials are apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from raydist.outcome.result import RunError
from raydist.spec.best import Direction
from raydist.tune.study import Spread, Study, TrialRow, missing_metric

FAILURE = RunError(type="ValueError", message="no such rate", exit_code=1)


def trial(run: str, value: float | None = None, **facts: Any) -> TrialRow:
    return TrialRow(run=run, value=value, **{"params": {}, "metrics": {}, **facts})


def trained(run: str, **facts: Any) -> TrialRow:
    return trial(run, state="SUCCEEDED", **facts)


def study(*trials: TrialRow, **facts: Any) -> Study:
    known = {"metric": "loss", "direction": Direction.LOWEST, "num_trials": len(trials), **facts}
    return Study(name="s", storage="runs", trials=trials, **known)


@pytest.mark.parametrize(
    ("direction", "ranked"),
    [(Direction.LOWEST, ["b", "a", "c", "d"]), (Direction.HIGHEST, ["a", "b", "c", "d"])],
)
def test_trials_stand_in_the_order_of_their_values_and_those_without_come_last(
    direction: Direction, ranked: list[str]
) -> None:
    found = study(trial("a", 2.0), trial("b", 1.0), trial("c", float("nan")), trial("d"), direction=direction)
    assert [one.run for one in found.ranked] == ranked
    assert found.best.run == ranked[0]


def test_study_without_a_value_has_no_best() -> None:
    assert study(trial("a"), trial("b", float("inf"))).best is None
    assert study().best is None


@pytest.mark.parametrize(
    ("facts", "has_ended", "is_complete"),
    [
        ({"state": "SUCCEEDED"}, True, True),
        ({"state": "CANCELLED"}, True, True),
        ({"state": "FAILED", "error": FAILURE}, True, False),
        # Its run was stopped because Tune failed.
        ({"state": "CANCELLED", "error": FAILURE}, True, False),
        ({"state": "RUNNING"}, False, False),
        ({}, False, False),
    ],
)
def test_trial_is_complete_if_it_succeeded_or_was_stopped_early(
    facts: dict[str, Any], has_ended: bool, is_complete: bool
) -> None:
    found = trial("a", **facts)
    assert (found.has_ended, found.is_complete) == (has_ended, is_complete)


def test_trial_that_the_search_ends_is_shown_as_stopped_early() -> None:
    early, stopped = trial("a", state="CANCELLED", stopped_early=True), trial("b", state="CANCELLED")
    found = study(early, stopped)
    assert [found.cells(one)[1] for one in found.trials] == ["stopped early", "CANCELLED"]
    told = [(one["state"], one["stopped_early"]) for one in found.as_dict()["trials"]]
    assert told == [("CANCELLED", True), ("CANCELLED", False)]


def test_study_knows_which_trials_failed() -> None:
    bad = trial("b", error=FAILURE)
    assert study(trial("a", 1.0), bad).failed == (bad,)
    assert study().failed == ()


def test_spread_is_that_of_the_trials_with_the_same_params() -> None:
    trials = [
        trained("a", params={"rate": 1}, seed=0, metrics={"loss": 1.0, "late": 5.0}),
        trained("b", params={"rate": 1}, seed=1, metrics={"loss": 2.0}),
        trained("c", params={"rate": 1}, seed=2, metrics={"loss": 6.0}),
        trained("d", params={"rate": 2}, seed=0, metrics={"loss": 4.0}),
        trial("e", params={"rate": 2}, seed=1, state="FAILED", error=FAILURE, metrics={"loss": 9.0}),
        # Stopped early: one epoch is no value to compare with those after ten.
        trial("f", params={"rate": 2}, seed=2, state="CANCELLED", epochs=1, metrics={"loss": 9.0}),
        trial("g", params={"rate": 3}, seed=0, state="CANCELLED", epochs=1, metrics={"loss": 9.0}),
    ]
    one, late, two = study(*trials).spreads()
    assert one.deviation == pytest.approx(7**0.5)
    assert (one.params, one.num_trials, one.mean, one.lowest, one.highest) == ({"rate": 1}, 3, 3.0, 1.0, 6.0)
    assert (late.metric, late.num_trials, late.deviation) == ("late", 1, None)
    assert two == Spread(
        params={"rate": 2}, metric="loss", num_trials=1, mean=4.0, deviation=None, lowest=4.0, highest=4.0
    )


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_spread_with_a_seed_that_diverged_is_no_number(diverged: float) -> None:
    trials = [
        trained("a", params={"rate": 1}, seed=0, metrics={"loss": 1.0}),
        trained("b", params={"rate": 1}, seed=1, metrics={"loss": diverged}),
        trained("c", params={"rate": 2}, seed=0, metrics={"loss": diverged}),
    ]
    two, alone = study(*trials).spreads()
    assert all(map(math.isnan, (two.mean, two.deviation or 0.0, two.lowest, two.highest)))
    assert (two.num_trials, alone.num_trials, alone.deviation) == (2, 1, None)
    assert math.isnan(alone.mean)


def test_table_has_the_params_the_seed_and_the_metric() -> None:
    found = study(
        trial(
            "a", 0.5, state="SUCCEEDED", params={"rate": 1}, seed=7, epochs=3, metrics={"loss": 0.7, "x": 1.0}
        )
    )
    assert found.columns() == ["run", "state", "rate", "seed", "epochs", "loss"]
    assert found.cells(found.trials[0]) == ["a", "SUCCEEDED", 1, 7, 3, 0.5]
    told = found.as_dict()
    assert (told["best"], told["mode"], told["trials"][0]["metrics"]) == ("a", "min", {"loss": 0.7, "x": 1.0})
    assert [one["metric"] for one in told["spreads"]] == ["loss", "x"]


def test_missing_metric_is_told_with_the_near_one() -> None:
    assert missing_metric("val_acc", ["loss", "val_accuracy"]) == (
        "metric is 'val_acc', which the job does not report; did you mean val_accuracy?"
    )
