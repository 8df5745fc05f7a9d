from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from raydist.controller.lost_attempts import _UNKNOWN_MONITOR, Decision, decide
from raydist.outcome.status import AttemptEnd, FailureKind, GroupLoss
from tests.support.fakes import make_failure


def decision_for(
    end: AttemptEnd, *, history: tuple[AttemptEnd, ...] = (), restored_step: int = 0, max_failures: int = 3
) -> Decision:
    return decide(end, restored_step=restored_step, history=history, max_failures=max_failures)


LOST = make_failure("worker/1", FailureKind.LOST)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(LOST, id="lost"),
        pytest.param(make_failure("worker/0", FailureKind.COLLATERAL), id="collateral"),
        pytest.param(make_failure("worker/0", FailureKind.START), id="start"),
        pytest.param(make_failure("worker/0", FailureKind.USER, step=7), id="user-after-progress"),
        pytest.param(GroupLoss(message="the mailbox is gone"), id="group-broken"),
    ],
)
@pytest.mark.parametrize("max_failures", [0, 1, 3])
def test_as_many_attempts_may_be_lost_as_are_allowed(end: AttemptEnd, max_failures: int) -> None:
    history: tuple[AttemptEnd, ...] = ()
    for _ in range(max_failures):
        assert decision_for(end, history=history, max_failures=max_failures).is_retry
        history = (*history, LOST)
    last = decision_for(end, history=history, max_failures=max_failures)
    assert not last.is_retry
    assert f"--max-failures is {max_failures}" in last.reason


@pytest.mark.parametrize(
    ("step", "restored_step", "is_retry"), [(0, 0, False), (1, 0, True), (40, 40, False), (41, 40, True)]
)
def test_user_exception_is_final_unless_steps_were_completed_since_the_restore(
    step: int, restored_step: int, is_retry: bool
) -> None:
    failure = make_failure("worker/0", step=step)
    assert decision_for(failure, restored_step=restored_step).is_retry is is_retry


@pytest.mark.parametrize("error_type", ["InvalidArgumentError", "TypeError", "NameError"])
def test_user_exception_that_would_be_raised_again_is_final(error_type: str) -> None:
    decision = decision_for(make_failure("worker/0", step=50, error_type=error_type), restored_step=40)
    assert not decision.is_retry
    assert decision.reason == f"{error_type} would be raised again: data and code would be the same"


def test_monitor_that_does_not_exist_is_final() -> None:
    message = (
        "EarlyStopping callback received monitor=val_acuracy, but Keras isn't able to automatically "
        "determine whether that metric should be maximized or minimized."
    )
    failure = make_failure("worker/0", step=50, error_type="ValueError", message=message)
    assert not decision_for(failure, restored_step=40).is_retry


def test_keras_words_it_as_the_policy_expects() -> None:
    keras = importlib.util.find_spec("keras")  # is not imported
    assert keras.origin is not None
    callbacks = sorted((Path(keras.origin).parent / "src/callbacks").glob("*.py"))
    nodes = [node for path in callbacks for node in ast.walk(ast.parse(path.read_text()))]
    assert any(isinstance(node, ast.Constant) and _UNKNOWN_MONITOR in str(node.value) for node in nodes)


def test_retry_says_what_ends_the_run() -> None:
    decision = decision_for(make_failure("worker/0", step=50), restored_step=40)
    assert decision.reason == "failure 1 of 3 allowed; if ValueError is raised at step 50 again, the run ends"


def test_final_error_is_final_whatever_was_completed() -> None:
    failure = make_failure("worker/0", step=50, error_type="BadLabels", wants_retry=False)
    assert decision_for(failure) == Decision(is_retry=False, reason="BadLabels is a FinalError")


@pytest.mark.parametrize("error_type", ["NotReady", "TypeError"])
def test_retryable_error_is_retried_within_max_failures_also_without_progress(error_type: str) -> None:
    failure = make_failure("worker/0", step=40, error_type=error_type, wants_retry=True)
    decision = decision_for(failure, history=(failure, failure), restored_step=40)
    assert decision == Decision(is_retry=True, reason="failure 3 of 3 allowed")
    decision = decision_for(failure, history=(failure,) * 3, restored_step=40)
    assert decision == Decision(is_retry=False, reason="4 attempts lost, --max-failures is 3")


def test_user_exception_at_the_same_step_twice_is_final() -> None:
    before = make_failure("worker/1", step=50)
    decision = decision_for(make_failure("worker/0", step=50), history=(before,), restored_step=40)
    assert decision == Decision(is_retry=False, reason="ValueError was raised at step 50 before")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(make_failure("worker/0", step=49), id="other-step"),
        pytest.param(make_failure("worker/0", step=50, error_type="KeyError"), id="other-exception"),
        pytest.param(make_failure("worker/0", FailureKind.LOST, step=50), id="lost-at-that-step"),
    ],
)
def test_another_failure_before_does_not_make_a_user_exception_final(before: AttemptEnd) -> None:
    assert decision_for(make_failure("worker/0", step=50), history=(before,), restored_step=40).is_retry
