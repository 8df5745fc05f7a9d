"""A controller that continues from the record of one that died: what it remembers, and what is free."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from raydist.controller.controller import Controller
from raydist.controller.machine import RunMachine
from raydist.controller.revival import Revival
from raydist.errors import ClusterError
from raydist.outcome.codec import as_plain, from_plain
from raydist.outcome.result import RunResult
from raydist.outcome.status import FailureKind, RunState
from raydist.planning.plan import Plan
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.run_record import RunRecord
from tests.support.fakes import PLACES, FakeClock, FakeLauncher, FakeTaskGroup, Moment, make_plan


def train(group: FakeTaskGroup) -> None:
    group.train_all()


def lose_worker_1(group: FakeTaskGroup) -> None:
    group.fail_task("worker/1", FailureKind.LOST)


def reach_step_30(group: FakeTaskGroup) -> None:
    group.clock.advance(2.0)
    group.advance_all(30, metrics={"loss": math.nan}, checkpoint="/runs/r/checkpoints/step-20-a1")


def break_ray(group: FakeTaskGroup) -> None:
    raise ClusterError("Ray is away")


def raise_in_worker_1(group: FakeTaskGroup) -> None:
    group.fail_task("worker/1", FailureKind.USER, step=30)


def finish(group: FakeTaskGroup) -> None:
    group.finish_all()


class Incarnation:
    """One incarnation of a run's controller, and the records that it wrote, as storage gives them back."""

    def __init__(self, plan: Plan, *scripts: Sequence[Moment], revival: Revival | None = None):
        self.clock = FakeClock()
        self.records: list[dict[str, Any]] = []
        self.machine = RunMachine(plan) if revival is None else RunMachine.revived(plan, revival)
        self.launcher = FakeLauncher(plan, scripts, clock=self.clock)
        self.controller = Controller(
            self.machine,
            launcher=self.launcher,
            clock=self.clock,
            places=PLACES,
            record=self._record,
            on_event=lambda event: None,
            ray_s=0.5,
            revival=revival,
        )

    def _record(self, result: RunResult) -> None:
        whole = RunRecord.of(result, failures=self.machine.history)
        self.records.append(json.loads(dump_plain_json(as_plain(whole))))

    def run(self) -> dict[str, Any]:
        self.controller.run()
        return self.records[-1]

    @property
    def in_the_end(self) -> dict[str, Any]:
        """The last record before the end, which is what a controller that is killed leaves."""
        return [record for record in self.records if record["state"] == "RUNNING"][-1]


def killed(plan: Plan, *scripts: Sequence[Moment], spent_s: float = 10.0) -> Revival:
    incarnation = Incarnation(plan, *scripts)
    incarnation.run()
    last: RunRecord = from_plain(incarnation.in_the_end, RunRecord)
    return Revival.of(last, history=last.failures, spent_s=spent_s)


def test_next_attempt_begins_and_the_note_says_that_it_is_free() -> None:
    plan = make_plan(max_failures=0)
    incarnation = Incarnation(plan, [train, finish], revival=killed(plan, [train, reach_step_30, finish]))
    record = incarnation.run()
    assert incarnation.launcher.attempts == [1]
    assert (record["state"], record["attempts"]) == ("SUCCEEDED", 2)
    assert [note for note in record["notes"] if "attempt 0 was lost with the run's controller" in note]


def test_what_was_reached_is_told_before_the_new_attempt_trains() -> None:
    plan = make_plan(max_failures=5)
    revival = killed(plan, [train, lose_worker_1], [train, reach_step_30, finish])
    incarnation = Incarnation(plan, [], revival=revival)
    status = incarnation.controller.status()
    assert (status.state, status.attempts, status.steps) == (RunState.STARTING, 3, 30)
    assert math.isnan(status.metrics["loss"])
    assert status.checkpoint == "/runs/r/checkpoints/step-20-a1"
    assert [note for note in status.notes if note.startswith("worker/1 failed first (attempt 0)")]


@pytest.mark.parametrize(
    ("max_failures", "state"), [(2, "SUCCEEDED"), (1, "FAILED")], ids=["within-budget", "beyond"]
)
def test_failures_before_the_death_still_count(max_failures: int, state: str) -> None:
    plan = make_plan(max_failures=max_failures)
    revival = killed(make_plan(max_failures=9), [train, lose_worker_1], [train, reach_step_30, finish])
    record = Incarnation(plan, [train, lose_worker_1], [train, finish], revival=revival).run()
    assert record["state"] == state


def test_exception_raised_at_that_step_before_the_death_is_final() -> None:
    plan = make_plan(max_failures=9)
    first = [train, reach_step_30, raise_in_worker_1]
    revival = killed(plan, first, [train, reach_step_30, finish])
    record = Incarnation(plan, first, revival=revival).run()
    assert "was raised at step 30 before" in record["error"]["message"]


def test_a_break_of_ray_is_remembered_too() -> None:
    plan = make_plan(max_failures=9)
    revival = killed(plan, [train, break_ray], [train, reach_step_30, finish])
    assert [end.message for end in revival.history] == ["Ray is away"]


def test_timeout_and_timings_count_from_the_submit() -> None:
    plan = make_plan(timeout=30.0)
    revival = killed(plan, [train, reach_step_30, finish], spent_s=28.0)
    record = Incarnation(plan, [train, reach_step_30, finish], revival=revival).run()
    assert "within 30 s (--timeout)" in record["error"]["message"]
    assert record["timings"]["ray"] == 0.5
    assert record["timings"]["total"] >= 30.0


def test_acceptance_is_recorded_as_the_first_attempts_start() -> None:
    incarnation = Incarnation(make_plan(), [])
    incarnation.controller.record_acceptance()
    assert [(record["state"], record["attempts"]) for record in incarnation.records] == [("STARTING", 1)]


@pytest.mark.parametrize("last", [finish, lose_worker_1], ids=["succeeded", "failed"])
def test_stored_result_says_what_the_controller_said(last: Moment) -> None:
    incarnation = Incarnation(make_plan(max_failures=0), [train, reach_step_30, last])
    stored = incarnation.run()
    result: RunRecord = from_plain(stored, RunRecord)
    assert json.loads(dump_plain_json(as_plain(result))) == stored
    assert result.exit_code == incarnation.controller.status().exit_code
