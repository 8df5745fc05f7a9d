from __future__ import annotations

import pytest

from raydist.controller.revival import Reached
from raydist.outcome.result import Evaluation
from raydist.outcome.status import TaskStatus
from raydist.spec.best import Best
from tests.support.fakes import make_status, task


def reached_after(
    *statuses: TaskStatus, attempt: int = 0, before: Reached | None = None, keep_best: str | None = None
) -> Reached:
    return (before or Reached()).updated(
        statuses, chief=task("chief/0"), attempt=attempt, keep_best=keep_best
    )


def test_values_of_before_are_kept_until_the_chief_reports_others() -> None:
    before = Reached(metrics={"loss": 0.5})
    assert reached_after(make_status("chief/0"), before=before).metrics == {"loss": 0.5}
    assert reached_after(make_status("chief/0", metrics={"x": 1.0}), before=before).metrics == {"x": 1.0}


def test_repeated_steps_are_summed_over_attempts() -> None:
    first = reached_after(make_status("chief/0", steps_repeated=2), make_status("chief/0", steps_repeated=5))
    assert first.steps_repeated == 5
    second = reached_after(make_status("chief/0", steps_repeated=1), attempt=1, before=first)
    assert second.steps_repeated == 6


def test_repeated_steps_are_those_that_the_chief_tells() -> None:
    assert reached_after(make_status("worker/0", steps_repeated=7)).steps_repeated == 0


def test_steps_are_those_of_whoever_is_furthest() -> None:
    reached = reached_after(make_status("chief/0", step=130), make_status("evaluator/0", step=100))
    assert reached.steps == 130


def test_evaluation_is_the_evaluators_last() -> None:
    first = make_status("evaluator/0", step=50, lag_steps=10, metrics={"loss": 0.9})
    second = make_status("evaluator/0", step=100, lag_steps=0, metrics={"loss": 0.7})
    reached = reached_after(first, second, make_status("chief/0", metrics={"loss": 0.1}))
    assert reached.evaluation == Evaluation(step=100, lag_steps=0, metrics={"loss": 0.7})
    assert reached.metrics == {"loss": 0.1}


def test_new_evaluator_that_has_not_evaluated_yet_keeps_the_last_evaluation() -> None:
    first = reached_after(make_status("evaluator/0", step=50, metrics={"loss": 0.9}))
    assert (
        reached_after(make_status("evaluator/0", incarnation=1), before=first).evaluation == first.evaluation
    )
    assert reached_after().evaluation is None


@pytest.mark.parametrize(
    ("keep_best", "of_chief", "of_evaluator", "expected"),
    [
        ("val_accuracy", None, ("val_accuracy", 0.8), 0.8),
        (None, ("loss", 0.3), ("val_loss", 0.5), 0.5),
        (None, ("accuracy", 0.3), ("val_accuracy", 0.8), 0.3),  # which the chief reports again and again
        ("loss", ("loss", 0.3), ("loss", 0.1), 0.3),
    ],
)
def test_best_value_is_the_evaluators_for_a_metric_that_only_it_reports(
    keep_best: str | None,
    of_chief: tuple[str, float] | None,
    of_evaluator: tuple[str, float],
    expected: float,
) -> None:
    def best(found: tuple[str, float] | None) -> Best | None:
        return found and Best(name=found[0], value=found[1], step=10)

    evaluator = make_status("evaluator/0", best=best(of_evaluator), metrics={"val_loss": 0.5})
    reached = reached_after(make_status("chief/0", best=best(of_chief)), evaluator, keep_best=keep_best)
    reached = reached_after(make_status("chief/0", best=best(of_chief)), before=reached, keep_best=keep_best)
    assert reached.best.value == expected
