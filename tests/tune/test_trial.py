"""What a trial tells Tune of its run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from raydist.errors import TaskFailedError
from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState
from raydist.tune.trial import TrialRun


class FakeRun:
    """A run that sends what it is told to, and ends when it is told to."""

    def __init__(self, *events: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        self._sent, self._metrics = events, metrics or {}
        self.failure: TaskFailedError | None = None
        self.is_asked_to_stop = False
        self.over = threading.Event()
        self.over.set()

    def __call__(self, on_event: Callable[[Mapping[str, Any]], None]) -> FakeRun:
        for event in self._sent:
            on_event(event)
        return self

    def stop(self) -> None:
        self.is_asked_to_stop = True
        self.over.set()

    def result(self, *, timeout: float | None = None) -> RunResult:
        if not self.over.wait(timeout):
            raise TimeoutError
        if self.failure is not None:
            raise self.failure
        return RunResult(
            run="r",
            state=RunState.SUCCEEDED,
            steps=9,
            metrics=self._metrics,
            checkpoint="s3://b/r/checkpoints/step-9-a0",
            storage="s3://b/r",
        )


def report(step: int, epoch: int | None, **metrics: float) -> dict[str, Any]:
    return {"event": "report", "step": step, "epoch": epoch, "metrics": metrics}


def state(name: str) -> dict[str, Any]:
    return {"event": "state", "state": name}


def test_each_epoch_is_told_once_with_the_newest_checkpoint() -> None:
    checkpoint = {"event": "checkpoint", "checkpoint": "s3://b/r/checkpoints/step-3-a0"}
    events = [
        state("RUNNING"),
        report(3, 1, loss=2.0),
        checkpoint,
        {"event": "progress", "step": 4},
        report(6, 2, loss=1.0),
        # After a failure the second epoch was trained again.
        report(6, 2, loss=1.0),
        report(9, 3, loss=0.5, val_loss=0.7),
        state("SUCCEEDED"),
    ]
    trial = TrialRun(FakeRun(*events, metrics={"loss": 0.5, "val_loss": 0.7}))
    told = [trial.next_report() for _ in range(4)]
    assert [one and (one.iteration, one.step, one.epoch, one.metrics, one.checkpoint) for one in told] == [
        (1, 3, 1, {"loss": 2.0}, None),
        (2, 6, 2, {"loss": 1.0}, "s3://b/r/checkpoints/step-3-a0"),
        (3, 9, 3, {"loss": 0.5, "val_loss": 0.7}, "s3://b/r/checkpoints/step-3-a0"),
        None,
    ]
    assert trial.end() is None  # there is no news in the result
    assert trial.checkpoint == "s3://b/r/checkpoints/step-9-a0"


def test_values_beside_the_epochs_count_as_reports_of_their_own() -> None:
    run = FakeRun(report(4, None, loss=2.0), report(8, None, accuracy=0.5), state("SUCCEEDED"))
    trial = TrialRun(run)
    told = [trial.next_report() for _ in range(3)]
    assert [one and (one.iteration, one.epoch, dict(one.metrics)) for one in told] == [
        (1, None, {"loss": 2.0}),
        (2, None, {"loss": 2.0, "accuracy": 0.5}),
        None,
    ]


def test_iteration_is_the_epoch_from_the_first_one_on() -> None:
    asides = [report(step, None, rate=0.5) for step in (1, 2, 3)]
    trial = TrialRun(FakeRun(*asides, report(4, 1, loss=2.0), report(8, 2, loss=1.0), state("SUCCEEDED")))
    told = [trial.next_report() for _ in range(5)]
    assert [one and (one.iteration, one.epoch) for one in told] == [
        *((1, None), (2, None), (3, None)),
        *((1, 1), (2, 2)),
    ]


def test_reports_of_a_trial_that_continues_are_counted_on() -> None:
    trial = TrialRun(FakeRun(report(12, None, loss=1.0), state("SUCCEEDED")), iteration=7)
    told = trial.next_report()
    assert (told.iteration, told.step) == (8, 12)


def test_values_beside_epochs_come_with_the_next_one_or_at_the_end() -> None:
    run = FakeRun(
        report(3, 1, loss=2.0),
        report(3, None, rate=0.5),
        report(6, 2, loss=1.0),
        report(6, None, accuracy=float("nan")),
        state("SUCCEEDED"),
        metrics={"accuracy": float("nan")},
    )
    trial = TrialRun(run)
    told = [trial.next_report() for _ in range(3)]
    assert [one and (one.iteration, dict(one.metrics)) for one in told] == [
        (1, {"loss": 2.0}),
        (2, {"loss": 1.0, "rate": 0.5}),
        None,
    ]
    last = trial.end()
    assert (last.iteration, last.metrics.keys()) == (2, {"loss", "rate", "accuracy"})


def test_run_that_had_succeeded_before_is_told_by_its_result() -> None:
    trial = TrialRun(FakeRun({"event": "note", "message": "has succeeded already"}, metrics={"loss": 0.5}))
    assert trial.next_report() is None
    last = trial.end()
    assert (last.step, last.metrics, last.checkpoint) == (9, {"loss": 0.5}, "s3://b/r/checkpoints/step-9-a0")


def test_run_that_continues_and_has_nothing_left_to_train_tells_what_it_had() -> None:
    run = FakeRun(state("RUNNING"), state("SUCCEEDED"))
    trial = TrialRun(run, checkpoint="s3://b/r/checkpoints/step-9-a0", metrics={"loss": 0.5}, epoch=3)
    assert trial.next_report() is None
    last = trial.end()
    assert (last.iteration, last.epoch, last.metrics) == (3, 3, {"loss": 0.5})


def test_failure_is_raised_at_the_end_after_what_was_reported() -> None:
    run = FakeRun(report(3, 1, loss=2.0), state("FAILED"))
    run.failure = TaskFailedError("worker/1 failed first (attempt 0): ValueError: no such file")
    trial = TrialRun(run)
    assert trial.next_report() is not None
    assert trial.next_report() is None
    with pytest.raises(TaskFailedError, match="worker/1 failed first"):
        trial.end()


def test_stop_waits_until_nothing_is_left_and_may_be_called_twice() -> None:
    run = FakeRun(report(3, 1, loss=2.0))
    run.over.clear()
    trial = TrialRun(run)
    trial.stop()
    trial.stop()
    assert run.is_asked_to_stop
    assert run.over.is_set()


def test_report_is_waited_for_while_the_run_goes_on() -> None:
    run = FakeRun()
    run.over.clear()
    sent: list[Callable[[Mapping[str, Any]], None]] = []

    def submit(on_event: Callable[[Mapping[str, Any]], None]) -> FakeRun:
        sent.append(on_event)
        return run

    trial = TrialRun(submit)

    def send_later() -> None:
        time.sleep(0.05)
        sent[0](report(3, 1, loss=2.0))

    thread = threading.Thread(target=send_later)
    thread.start()
    found = trial.next_report()
    thread.join()
    assert found.epoch == 1
