from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydist.controller.controller import (
    GRACE_S,
    POLL_S,
    ROOM_EVERY_S,
    ROOM_IN_PLACE_EVERY_S,
    SAVE_S,
    Controller,
)
from raydist.controller.events import StoredCheckpoint
from raydist.controller.machine import RunMachine
from raydist.errors import ClusterError, RaydistError, StorageError
from raydist.outcome.result import RunResult
from raydist.outcome.status import Command, FailureKind, RunState, TaskState
from raydist.planning.plan import Plan
from raydist.spec.job import EntryPoint, Strategy, WorkerRange
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.fakes import (
    PLACES,
    UNIX_AT_START_S,
    FakeClock,
    FakeLauncher,
    FakeTaskGroup,
    Moment,
    make_failure,
    make_plan,
    make_status,
    task,
)

Script = Sequence[Moment] | BaseException


class Run:
    """A controller whose attempts follow scripts, and all that it wrote."""

    def __init__(
        self,
        *scripts: Script,
        plan: Plan | None = None,
        first_attempt: int = 0,
        ray_s: float = 0.0,
        on_end: Callable[[RunResult], str | None] | None = None,
        more_notes: Callable[[], tuple[str, ...]] = tuple,
        newest_checkpoint: Callable[[], StoredCheckpoint | None] = lambda: None,
    ):
        plan = plan or make_plan()
        self.clock = FakeClock()
        self.launcher = FakeLauncher(plan, scripts, clock=self.clock)
        self.records: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.record_problem: RaydistError | None = None
        self.controller = Controller(
            RunMachine(plan, first_attempt=first_attempt),
            launcher=self.launcher,
            clock=self.clock,
            places=PLACES,
            record=self._record,
            on_event=self.events.append,
            on_end=on_end,
            more_notes=more_notes,
            newest_checkpoint=newest_checkpoint,
            ray_s=ray_s,
        )

    def _record(self, result: RunResult) -> None:
        if self.record_problem is not None:
            raise self.record_problem
        self.records.append(result.as_dict())

    @property
    def states(self) -> list[str]:
        return [event["state"] for event in self.events if event["event"] == "state"]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


def place(group: FakeTaskGroup) -> None:
    group.place_all()


def train(group: FakeTaskGroup) -> None:
    group.train_all()


def finish(group: FakeTaskGroup) -> None:
    group.finish_all()


def lose_worker_1(group: FakeTaskGroup) -> None:
    group.fail_task("worker/1", FailureKind.LOST)


def press_ctrl_c(group: FakeTaskGroup) -> None:
    raise KeyboardInterrupt


def test_undisturbed_run_succeeds_and_stops_its_group() -> None:
    run = Run([place, train, lambda group: group.advance_all(8), finish])
    result = run.controller.run()
    assert (result.state, result.steps, result.attempts) == (RunState.SUCCEEDED, 8, 1)
    assert run.states == ["STARTING", "RUNNING", "STOPPING", "SUCCEEDED"]
    assert [group.num_stops for group in run.launcher.groups] == [1]
    assert run.records[-1] == result.as_dict() == run.controller.status().as_dict()


def test_lost_task_is_followed_by_an_attempt_that_goes_on_from_the_restored_step() -> None:
    run = Run(
        [train, lambda group: group.advance_all(55), lose_worker_1],
        [
            train,
            lambda group: group.advance_all(40, restored_step=40),
            lambda group: group.advance_all(60),
            finish,
        ],
    )
    result = run.controller.run()
    assert (result.state, result.attempts, result.steps) == (RunState.SUCCEEDED, 2, 60)
    assert run.launcher.attempts == [0, 1]
    assert [group.num_stops for group in run.launcher.groups] == [1, 1]
    assert [group.is_for_another for group in run.launcher.groups] == [True, False]
    assert run.launcher.num_closes == 1
    assert run.states == ["STARTING", "RUNNING", "STOPPING", "STARTING", "RUNNING", "STOPPING", "SUCCEEDED"]
    assert run.of("attempt")[0]["message"] in result.notes
    assert run.of("note") == []


def test_resumed_run_counts_its_attempts_on() -> None:
    run = Run([train, finish], first_attempt=3)
    assert run.controller.run().attempts == 4
    assert run.launcher.attempts == [3]


@pytest.mark.parametrize("max_failures", [0, 1, 3])
def test_run_fails_once_its_budget_is_spent(max_failures: int) -> None:
    run = Run(*[[train, lose_worker_1]] * (max_failures + 1), plan=make_plan(max_failures=max_failures))
    result = run.controller.run()
    assert (result.state, result.attempts, result.exit_code) == (RunState.FAILED, max_failures + 1, 1)
    assert all(group.num_stops == 1 for group in run.launcher.groups)


def test_cause_that_comes_after_its_consequence_is_named() -> None:
    run = Run(
        [
            train,
            lambda group: group.fail_task("worker/0", FailureKind.COLLATERAL),
            lambda group: None,
            lambda group: group.fail_task("worker/1", FailureKind.USER),
        ]
    )
    result = run.controller.run()
    assert str(result.error.task) == "worker/1"
    assert result.error.log == "/runs/r/logs/0/worker-1"
    assert [event["task"] for event in run.of("task_failed")] == ["worker/0", "worker/1"]


def test_consequence_whose_cause_stays_away_ends_the_attempt_after_the_grace() -> None:
    run = Run(
        [train, lambda group: group.fail_task("worker/0", FailureKind.COLLATERAL)],
        plan=make_plan(max_failures=0),
    )
    assert run.controller.run().state is RunState.FAILED
    assert run.clock.now() == pytest.approx(GRACE_S)


def test_decisive_failure_stops_the_group_without_any_grace() -> None:
    run = Run([train, lose_worker_1], plan=make_plan(max_failures=0))
    run.controller.run()
    assert run.clock.now() == 0.0


def test_attempt_without_room_fails_at_the_start_deadline() -> None:
    run = Run([], plan=make_plan(start_timeout=10.0))
    result = run.controller.run()
    assert (result.exit_code, run.clock.now()) == (3, pytest.approx(10.0))
    assert "no room for worker/0, worker/1 within 10 s" in result.error.message


def test_each_attempt_has_its_own_start_deadline() -> None:
    def one_starts(group: FakeTaskGroup) -> None:
        group.place_all()
        group.say("worker/0", state=TaskState.RUNNING)

    run = Run([one_starts], [place, train, finish], plan=make_plan(start_timeout=10.0))
    result = run.controller.run()
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert "worker/1 at 10.0.0.2:3333 (STARTING)" in result.notes[0]


def test_start_deadline_ends_with_the_start() -> None:
    def let_time_pass(group: FakeTaskGroup) -> None:
        group.clock.advance(3600)

    run = Run([train, let_time_pass, finish], plan=make_plan(start_timeout=10.0))
    assert run.controller.run().state is RunState.SUCCEEDED


def test_news_that_came_in_time_count_although_they_are_read_late() -> None:
    def train_and_be_read_late(group: FakeTaskGroup) -> None:
        group.train_all()
        group.clock.advance(11)

    run = Run([train_and_be_read_late, finish], plan=make_plan(start_timeout=10.0))
    assert run.controller.run().state is RunState.SUCCEEDED


def test_run_timeout_counts_from_the_call_and_over_all_attempts() -> None:
    run = Run([train, lose_worker_1], [train], plan=make_plan(timeout=30.0), ray_s=4.0)
    result = run.controller.run()
    assert (result.state, result.exit_code, result.attempts) == (RunState.FAILED, 124, 2)
    assert run.clock.now() == pytest.approx(26.0)
    assert "within 30 s (--timeout)" in result.error.message


def test_half_started_group_ends_the_run_with_its_cluster_error_and_is_stopped() -> None:
    def break_group(group: FakeTaskGroup) -> None:
        raise ClusterError("host 10.0.0.2 has TensorFlow 2.20, this host 2.21")

    run = Run([place, break_group])
    result = run.controller.run()
    assert (result.state, result.exit_code, result.attempts) == (RunState.FAILED, 3, 1)
    assert run.launcher.groups[0].num_stops == 1


def test_group_that_cannot_be_made_ends_the_run() -> None:
    run = Run(ClusterError("needs 8 GPUs; the cluster has 0"))
    result = run.controller.run()
    assert (result.state, result.exit_code) == (RunState.FAILED, 3)
    assert run.states == ["STARTING", "STOPPING", "FAILED"]


def test_group_that_breaks_while_running_is_replaced() -> None:
    def break_group(group: FakeTaskGroup) -> None:
        raise ClusterError("the mailbox is gone")

    run = Run([train, break_group], [train, finish])
    assert run.controller.run().attempts == 2


def test_group_that_cannot_be_stopped_is_tried_again_and_never_retried_beside() -> None:
    def lose_and_cling(group: FakeTaskGroup) -> None:
        group.stop_problems.append(TimeoutError("actor does not answer"))
        lose_worker_1(group)

    run = Run([train, lose_and_cling])
    result = run.controller.run()
    assert (result.state, result.exit_code, run.launcher.attempts) == (RunState.FAILED, 3, [0])
    assert run.launcher.groups[0].num_stops == 2
    assert "attempt 0 could not be stopped cleanly: TimeoutError: actor does not answer" in result.notes


@pytest.mark.parametrize(
    "script",
    [[press_ctrl_c], [place, press_ctrl_c], [train, press_ctrl_c]],
    ids=["placing", "starting", "running"],
)
def test_ctrl_c_cancels_the_run_and_stops_the_group(script: Script) -> None:
    run = Run(script)
    result = run.controller.run()
    assert (result.state, result.exit_code, result.error) == (RunState.CANCELLED, 130, None)
    assert run.launcher.groups[0].num_stops == 1
    assert run.records[-1]["state"] == "CANCELLED"


def train_on_while_stopped(group: FakeTaskGroup) -> None:
    """The chief has reported step 40, and reports step 50 once it is asked to stop."""
    group.advance_all(40, checkpoint="/c/step-40")
    group.last = (make_status("worker/0", step=50, checkpoint="/c/step-48", metrics={"loss": 0.5}),)


def cannot_be_read() -> StoredCheckpoint:
    raise StorageError("the server is away")


def end_by_a_mistake(group: FakeTaskGroup) -> None:
    group.fail_task("worker/1", FailureKind.MISTAKE)


def end_by_a_bug(group: FakeTaskGroup) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("end", [press_ctrl_c, end_by_a_mistake, end_by_a_bug])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (lambda: StoredCheckpoint(step=56, uri="/c/step-56"), (56, "/c/step-56")),
        (lambda: StoredCheckpoint(step=48, uri="/c/step-48"), (50, "/c/step-48")),
        (cannot_be_read, (50, "/c/step-48")),
    ],
    ids=["committed-since", "reported", "away"],
)
def test_result_says_what_the_tasks_did_until_they_were_gone(
    end: Moment, stored: Callable[[], StoredCheckpoint], expected: tuple[int, str]
) -> None:
    run = Run([train, train_on_while_stopped, end], newest_checkpoint=stored)
    with contextlib.suppress(ZeroDivisionError):
        run.controller.run()
    result = run.controller.status()
    assert (result.steps, result.checkpoint) == expected
    assert result.metrics == {"loss": 0.5}
    assert run.records[-1] == result.as_dict()
    assert [event["checkpoint"] for event in run.of("checkpoint")][-1] == expected[1]


@pytest.mark.parametrize(
    ("stored", "checkpoint", "note"),
    [
        (lambda: None, None, "/c/step-48 is gone: something has deleted the run's checkpoints from storage"),
        (cannot_be_read, "/c/step-48", "/c/step-48 may be gone, storage cannot be read: "),
    ],
    ids=["deleted", "away"],
)
def test_checkpoint_that_storage_does_not_have_at_the_end_is_told(
    stored: Callable[[], StoredCheckpoint], checkpoint: str | None, note: str
) -> None:
    run = Run([train, train_on_while_stopped, press_ctrl_c], newest_checkpoint=stored)
    result = run.controller.run()
    assert result.checkpoint == checkpoint
    assert [one for one in result.notes if one.startswith(note)] != []


def test_resumed_run_that_is_stopped_before_it_trains_keeps_its_checkpoint() -> None:
    stored = StoredCheckpoint(step=48, uri="/c/step-48")
    run = Run([place, press_ctrl_c], first_attempt=1, newest_checkpoint=lambda: stored)
    result = run.controller.run()
    assert (result.state, result.steps, result.checkpoint) == (RunState.CANCELLED, 48, "/c/step-48")


def test_task_that_fails_as_it_is_stopped_changes_no_state() -> None:
    def fail_late(group: FakeTaskGroup) -> None:
        failure = make_failure("worker/1", FailureKind.COLLATERAL)
        group.last = (make_status("worker/1", TaskState.FAILED, failure=failure),)
        raise KeyboardInterrupt

    result = Run([train, fail_late]).controller.run()
    assert [one.state for one in result.tasks] == [TaskState.STOPPED] * 2


def test_ctrl_c_while_the_group_is_made_cancels_the_run() -> None:
    run = Run(KeyboardInterrupt())
    assert run.controller.run().state is RunState.CANCELLED


def test_second_ctrl_c_calls_stop_again_which_then_waits_for_nobody() -> None:
    def press_twice(group: FakeTaskGroup) -> None:
        group.stop_problems.append(KeyboardInterrupt())
        raise KeyboardInterrupt

    run = Run([train, press_twice])
    assert run.controller.run().state is RunState.CANCELLED
    assert run.launcher.groups[0].num_stops == 2


def test_ctrl_c_while_a_lost_attempt_is_stopped_starts_no_other() -> None:
    def lose_and_press(group: FakeTaskGroup) -> None:
        group.stop_problems.append(KeyboardInterrupt())
        lose_worker_1(group)

    run = Run([train, lose_and_press])
    assert run.controller.run().state is RunState.CANCELLED
    assert (run.launcher.attempts, run.launcher.groups[0].num_stops) == ([0], 2)


def test_stop_asked_for_from_elsewhere_is_noticed_by_the_next_poll() -> None:
    def ask(group: FakeTaskGroup) -> None:
        run.controller.request_stop()

    run = Run([train, ask])
    assert run.controller.run().state is RunState.CANCELLED
    assert run.clock.now() <= POLL_S


def test_stop_asked_for_before_the_start_starts_nothing() -> None:
    run = Run()
    run.controller.request_stop()
    assert run.controller.run().state is RunState.CANCELLED
    assert run.launcher.attempts == []


def test_bug_is_raised_after_the_group_is_stopped_and_the_run_recorded() -> None:
    def fall_over(group: FakeTaskGroup) -> None:
        raise ZeroDivisionError("bug")

    run = Run([train, fall_over])
    with pytest.raises(ZeroDivisionError):
        run.controller.run()
    assert run.launcher.groups[0].num_stops == 1
    assert run.records[-1]["state"] == "FAILED"
    assert run.records[-1]["error"]["type"] == "ZeroDivisionError"


def test_record_is_replaced_at_each_state_and_once_a_second_in_between() -> None:
    run = Run([train, *[lambda group: None] * 20, finish])  # 20 polls without news take 10 s
    run.controller.run()
    states = [record["state"] for record in run.records]
    assert states.count("RUNNING") == 1 + 10
    assert list(dict.fromkeys(states)) == ["STARTING", "RUNNING", "STOPPING", "SUCCEEDED"]


def test_storage_that_stutters_does_not_end_the_run() -> None:
    def lose_storage(group: FakeTaskGroup) -> None:
        run.record_problem = StorageError("disk full")

    run = Run([train, lose_storage, finish])
    result = run.controller.run()
    assert result.state is RunState.SUCCEEDED
    assert result.notes == ("run.json is not up to date, it could not be written: disk full",)


def test_run_that_is_taken_over_ends_without_its_group() -> None:
    def lose_run(group: FakeTaskGroup) -> None:
        run.record_problem = ClusterError("taken over")

    run = Run([train, lose_run, finish])
    with pytest.raises(ClusterError, match="taken over"):
        run.controller.run()
    assert run.launcher.groups[0].num_stops == 1


def test_timings_count_from_the_call_and_tell_of_the_first_attempt() -> None:
    def first_step(group: FakeTaskGroup) -> None:
        group.clock.advance(6)
        group.advance_all(1, first_step_at_s=UNIX_AT_START_S + 5)

    def later_step(group: FakeTaskGroup) -> None:
        group.clock.advance(6)
        group.advance_all(1, first_step_at_s=group.clock.unix())

    run = Run([train, first_step, lose_worker_1], [train, later_step, finish], ray_s=2.0)
    assert run.controller.run().timings == {
        "ray": 2.0,
        "placement": 3.0,
        "tasks_ready": 4.0,
        "first_step": 7.0,
        "total": 14.0,
    }


def test_progress_tells_what_the_chief_sees() -> None:
    def step(group: FakeTaskGroup) -> None:
        group.clock.advance(3)
        chief_sees = {"step": 30, "num_steps": 90, "epoch": 1, "num_epochs": 3, "steps_per_s": 10.0}
        group.say(
            "worker/0", **chief_sees, metrics={"accuracy": 0.9, "loss": 0.4}, local_metrics={"loss": 0.3}
        )
        group.say("worker/1", step=31, metrics={"loss": 7.0})

    run = Run([place, train, step, finish])
    run.controller.run()
    assert run.of("progress")[0]["phase"] == "starting tasks (0 of 2 ready)"
    assert run.of("progress")[2] == {
        "event": "progress",
        "at_s": UNIX_AT_START_S + 3,
        "attempt": 0,
        "phase": "running",
        "step": 30,
        "num_steps": 90,
        "epoch": 1,
        "num_epochs": 3,
        "steps_per_s": 10.0,
        "metrics": {"accuracy": 0.9, "loss": 0.3},
        "run_s": 3.0,
        "hint": None,
    }


@pytest.mark.parametrize(("function", "seconds"), [("", 63), ("", 60), ("train", 63)])
def test_progress_of_a_script_without_steps_tells_which_calls_show_it(function: str, seconds: int) -> None:
    def wait(group: FakeTaskGroup) -> None:
        group.clock.advance(seconds)

    plan = make_plan(entry_point=EntryPoint(file="main.py", function=function))
    run = Run([place, train, wait, lambda group: group.advance_all(1), finish], plan=plan)
    run.controller.run()
    told = [event["hint"] for event in run.of("progress") if event["hint"]]
    assert bool(told) is (not function and seconds == 63)
    assert all("model.fit, raydist.context().report(" in one and "train_steps(" in one for one in told)
    assert run.of("progress")[-1]["hint"] is None


def parameter_server_run(*scripts: Script, **job: object) -> Run:
    plan = make_plan(strategy=Strategy.PARAMETER_SERVER, is_evaluated=True, **job)
    return Run(*scripts, plan=plan)


def come_back(group: FakeTaskGroup) -> None:
    group.clock.advance(4)
    group.say("worker/1", state=TaskState.RUNNING)


def come_back_elsewhere(group: FakeTaskGroup) -> None:
    group.say("worker/1", state=TaskState.STARTING, host="10.0.0.9", address="10.0.0.9:4000")


def finish_chief(group: FakeTaskGroup) -> None:
    group.finish_task("chief/0")


def finish_evaluator(group: FakeTaskGroup) -> None:
    group.finish_task("evaluator/0")


def test_dead_worker_is_replaced_in_its_group_before_anything_else_is_heard() -> None:
    def look(group: FakeTaskGroup) -> None:
        assert group.replaced == ["worker/1"]
        come_back(group)

    run = parameter_server_run([train, lose_worker_1, look, finish_chief, finish_evaluator])
    result = run.controller.run()
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)
    assert result.notes == (
        "worker/1 died (attempt 0, step 0): killed by SIGKILL; back in service after 4.0 s",
    )


def test_death_and_return_are_told_as_events() -> None:
    run = parameter_server_run([train, lose_worker_1, come_back, finish_chief, finish_evaluator])
    result = run.controller.run()
    assert [(event["task"], event["kind"]) for event in run.of("task_failed")] == [("worker/1", "LOST")]
    (back,) = run.of("task_back")
    assert (back["task"], back["after_s"], back["message"]) == ("worker/1", 4.0, result.notes[0])
    assert [*run.of("note"), *run.of("attempt")] == []


def test_task_that_is_given_up_is_told_as_an_event() -> None:
    def lose_evaluator(group: FakeTaskGroup) -> None:
        group.fail_task("evaluator/0", FailureKind.LOST)

    run = parameter_server_run([train, *[lose_evaluator] * 6, finish_chief])
    run.controller.run()
    assert run.launcher.groups[0].replaced == ["evaluator/0"] * 5
    assert len(run.of("task_failed")) == 6
    assert [event["task"] for event in run.of("task_given_up")] == ["evaluator/0"]


def test_evaluator_is_ordered_to_finish_when_the_chief_has_returned() -> None:
    run = parameter_server_run([train, finish_chief, lambda group: None, finish_evaluator])
    assert run.controller.run().state is RunState.SUCCEEDED
    assert run.launcher.groups[0].commands == [(Command.FINISH, (task("evaluator/0"),))]


def test_coordinator_is_restarted_once_it_has_saved_for_a_worker_that_moved() -> None:
    def save(group: FakeTaskGroup) -> None:
        assert group.commands == [(Command.SAVE, (task("chief/0"),))]
        group.say("chief/0", step=120, checkpoint="/c/step-120")

    def step(group: FakeTaskGroup) -> None:
        group.clock.advance(8.3)
        group.say("chief/0", step=121, restored_step=120, first_step_at_s=group.clock.unix())

    run = parameter_server_run(
        [train, lose_worker_1, come_back_elsewhere, save],
        [train, step, finish_chief, finish_evaluator],
        fence=True,
    )
    result = run.controller.run()
    assert (result.state, result.attempts, run.launcher.attempts) == (RunState.SUCCEEDED, 2, [0, 1])
    assert result.notes[1] == (
        "worker/1 came back on another host: training was restarted from the checkpoint of step 120 "
        "after 8.3 s"
    )
    assert len(run.of("restarting")) == 1
    assert [(event["step"], event["tasks"]) for event in run.of("restarted")] == [(120, ["worker/1"])]


@pytest.mark.parametrize("drained", ["worker/0", "worker/1"])  # the chief's host, and another one
def test_drain_whose_deadline_is_shorter_than_the_save_goes_on_from_the_checkpoint_before(
    drained: str, tmp_path: Path
) -> None:
    """1. Step 10 is committed. 2. The host is drained, and the chief is told to save step 20.

    3. The host is gone before the commit marker of step 20 is written. 4. The next attempt continues.
    """
    storage = open_run(str(tmp_path), run="r")
    store = CheckpointStore(storage)
    restored: list[int] = []

    class HostGone(BaseException): ...

    class Interrupted(RunStorage):
        def write_bytes(self, key: str, data: bytes, *, is_durable: bool = False) -> None:
            if key == self.checkpoint_marker(step=20, attempt=0):
                raise HostGone
            super().write_bytes(key, data, is_durable=is_durable)

    def newest() -> StoredCheckpoint | None:
        found = store.newest()
        return found and StoredCheckpoint(step=found.step, uri=found.uri)

    def commit_step_10(group: FakeTaskGroup) -> None:
        group.advance_all(10)
        group.say("worker/0", checkpoint=store.commit(step=10, attempt=0, files={"a": b"10"}).uri)

    def drain(group: FakeTaskGroup) -> None:
        group.advance_all(20)
        group.say(drained, leaving="its host is drained")

    def vanish_while_saving(group: FakeTaskGroup) -> None:
        assert group.commands == [(Command.SAVE_LAST, (task("worker/0"),))]
        with contextlib.suppress(HostGone):
            CheckpointStore(Interrupted(storage, run="r")).commit(step=20, attempt=0, files={"a": b"20"})
        assert storage.exists(f"{storage.checkpoint(step=20, attempt=0)}/a")
        group.fail_task(drained, FailureKind.LOST)

    def restore(group: FakeTaskGroup) -> None:
        point = store.latest_whole()
        assert point.damaged == ()
        restored.append(point.checkpoint.step)
        group.advance_all(restored[-1], restored_step=restored[-1])

    def train_on(group: FakeTaskGroup) -> None:
        group.advance_all(20)
        store.commit(step=20, attempt=1, files={"a": b"20"})
        store.prune(keep=1)

    run = Run(
        [train, commit_step_10, drain, vanish_while_saving],
        [train, restore, train_on, finish],
        plan=make_plan(max_failures=0),
        newest_checkpoint=newest,
    )
    result = run.controller.run()
    assert (result.state, result.attempts, restored) == (RunState.SUCCEEDED, 2, [10])
    assert result.notes[0].endswith("retried: it had to leave, not counted")
    assert result.checkpoint == store.committed()[0].uri
    assert storage.list_names(storage.checkpoints) == ["step-20-a1"]  # nothing is left of what was torn


def test_chief_gets_a_limited_time_to_save() -> None:
    run = parameter_server_run(
        [train, lose_worker_1, come_back_elsewhere], [train, finish_chief, finish_evaluator], fence=True
    )
    assert run.controller.run().attempts == 2
    assert run.clock.now() == pytest.approx(SAVE_S)


def test_chief_that_was_to_save_may_train_on_when_the_reason_is_gone() -> None:
    def let_time_pass(group: FakeTaskGroup) -> None:
        group.clock.advance(2 * SAVE_S)

    disturbed = [lose_worker_1, come_back_elsewhere, lose_worker_1, let_time_pass, come_back]
    run = parameter_server_run([train, *disturbed, finish_chief, finish_evaluator], fence=True)
    assert run.controller.run().attempts == 1


def test_group_that_breaks_while_a_task_is_replaced_costs_an_attempt() -> None:
    class Breaking(FakeTaskGroup):
        def replace(self, task: object) -> None:
            raise ClusterError("Ray is gone")

    def break_group(group: FakeTaskGroup) -> None:
        group.__class__ = Breaking
        for name in ("worker/0", "worker/1"):
            group.fail_task(name, FailureKind.LOST)

    run = parameter_server_run([train, break_group], [train, finish_chief, finish_evaluator])
    assert run.controller.run().attempts == 2


def test_stop_that_is_asked_for_as_a_worker_dies_replaces_nothing() -> None:
    def lose_and_stop(group: FakeTaskGroup) -> None:
        lose_worker_1(group)
        run.controller.request_stop()

    run = parameter_server_run([train, lose_and_stop])
    assert run.controller.run().state is RunState.CANCELLED
    assert run.launcher.groups[0].replaced == []


def lose_both(group: FakeTaskGroup) -> None:
    """One worker's host is gone, and its peer sees it."""
    group.fail_task("worker/1", FailureKind.LOST)
    group.fail_task("worker/0", FailureKind.COLLATERAL)


def make_elastic_plan(workers: int) -> Plan:
    return make_plan(workers=workers, workers_range=WorkerRange(minimum=1, maximum=2), max_failures=1)


def test_elastic_run_goes_on_with_the_workers_that_there_is_room_for() -> None:
    def lose_host(group: FakeTaskGroup) -> None:
        run.launcher.workers = 1
        lose_both(group)

    run = Run([train, lose_host], [train, finish], plan=make_elastic_plan(2))
    result = run.controller.run()
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert [group.names for group in run.launcher.groups] == [["worker/0", "worker/1"], ["worker/0"]]
    assert [str(each.task) for each in result.tasks] == ["worker/0"]


def test_parameter_server_run_takes_in_a_worker_as_soon_as_there_is_room() -> None:
    def make_room(group: FakeTaskGroup) -> None:
        run.launcher.workers = 2
        group.clock.advance(ROOM_IN_PLACE_EVERY_S)

    workers = WorkerRange(minimum=1, maximum=3)
    plan = make_plan(workers=1, workers_range=workers, strategy=Strategy.PARAMETER_SERVER)
    run = Run([train, make_room, finish_chief], plan=plan)
    result = run.controller.run()
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)
    assert run.launcher.groups[0].added == [2]


def test_elastic_run_grows_from_a_checkpoint_when_there_is_room() -> None:
    def make_room(group: FakeTaskGroup) -> None:
        run.launcher.workers = 2
        group.clock.advance(ROOM_EVERY_S)

    def save(group: FakeTaskGroup) -> None:
        assert group.commands == [(Command.SAVE, (task("worker/0"),))]
        group.say("worker/0", step=40, checkpoint="/c/step-40")

    run = Run([train, make_room, save], [train, finish], plan=make_elastic_plan(1))
    result = run.controller.run()
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert [group.names for group in run.launcher.groups] == [["worker/0"], ["worker/0", "worker/1"]]
    assert [event["message"] for event in run.of("attempt")] == [
        "attempt 1 trains with 2 workers instead of 1"
    ]


def test_run_whose_hosts_vanish_before_it_is_placed_takes_those_that_are_left() -> None:
    def lose_room(group: FakeTaskGroup) -> None:
        run.launcher.workers = 1
        group.clock.advance(ROOM_EVERY_S)

    run = Run([lose_room], [train, finish], plan=make_elastic_plan(2))
    result = run.controller.run()
    assert result.state is RunState.SUCCEEDED
    assert [group.names for group in run.launcher.groups] == [["worker/0", "worker/1"], ["worker/0"]]


def test_run_of_a_fixed_size_does_not_look_for_room() -> None:
    def make_room(group: FakeTaskGroup) -> None:
        run.launcher.workers = 3
        group.clock.advance(ROOM_EVERY_S)

    run = Run([train, make_room, finish])
    assert run.controller.run().attempts == 1


def test_each_change_of_a_task_is_told_once() -> None:
    run = Run([place, train, lambda group: group.advance_all(8), lose_worker_1], [train, finish])
    run.controller.run()
    told = [(event["attempt"], event["task"], event["state"]) for event in run.of("task")]
    assert len(told) == len(set(told))
    assert [(attempt, state) for attempt, name, state in told if name == "worker/1"] == [
        (0, "STARTING"),
        (0, "RUNNING"),
        (0, "FAILED"),
        (1, "RUNNING"),
        (1, "FINISHED"),
    ]


def test_replaced_task_is_told_as_its_next_process() -> None:
    run = parameter_server_run([train, lose_worker_1, come_back, finish_chief, finish_evaluator])
    run.controller.run()
    told = [(event["incarnation"], event["state"]) for event in run.of("task") if event["task"] == "worker/1"]
    assert told[:3] == [(0, "RUNNING"), (1, "PENDING"), (1, "RUNNING")]


def test_notes_of_others_are_told_once_and_kept() -> None:
    said: list[str] = []

    def save(group: FakeTaskGroup) -> None:
        said.append("the server is away")
        group.say("worker/0", step=40, checkpoint="/c/step-40")

    run = Run([train, save, finish], more_notes=lambda: tuple(said))
    result = run.controller.run()
    assert result.notes[-1] == run.records[-1]["notes"][-1] == "the server is away"
    assert [event["message"] for event in run.of("note")] == ["the server is away"]


def test_each_new_checkpoint_is_told_once() -> None:
    def save(group: FakeTaskGroup) -> None:
        group.say("worker/0", step=40, checkpoint="/c/step-40")

    def save_again(group: FakeTaskGroup) -> None:
        group.say("worker/0", step=50, checkpoint="/c/step-40")
        group.clock.advance(1.0)
        group.say("worker/0", step=60, checkpoint="/c/step-60")

    run = Run([train, save, save_again, finish])
    run.controller.run()
    assert [event["checkpoint"] for event in run.of("checkpoint")] == ["/c/step-40", "/c/step-60"]


def test_end_hook_is_called_once_with_what_was_recorded_last() -> None:
    seen: list[tuple[dict[str, Any], dict[str, Any], int]] = []

    def note_end(result: RunResult) -> None:
        seen.append((result.as_dict(), run.records[-1], run.launcher.groups[0].num_stops))

    run = Run([train, finish], on_end=note_end)
    result = run.controller.run()
    assert seen == [(result.as_dict(), result.as_dict(), 1)]
    assert result.state is RunState.SUCCEEDED
    assert run.of("note") == []


@pytest.mark.parametrize("last", [finish, press_ctrl_c], ids=["succeeded", "cancelled"])
def test_end_hook_that_fails_is_a_note_and_changes_nothing_else(last: Moment) -> None:
    undisturbed = Run([train, last]).controller.run()
    run = Run([train, last], on_end=lambda result: "on_end ended with exit code 1")
    result = run.controller.run()
    assert result.notes == (*undisturbed.notes, "on_end ended with exit code 1")
    assert (result.state, result.error) == (undisturbed.state, undisturbed.error)
    assert run.records[-1] == result.as_dict() == run.controller.status().as_dict()
    assert [event["message"] for event in run.of("note")] == ["on_end ended with exit code 1"]


def test_end_hook_that_fails_leaves_a_run_alone_that_was_resumed_meanwhile() -> None:
    def resume_elsewhere(result: RunResult) -> str:
        run.record_problem = ClusterError("run is taken over")
        return "on_end ended with exit code 1"

    run = Run([train, finish], on_end=resume_elsewhere)
    assert run.controller.run().state is RunState.SUCCEEDED
    assert run.records[-1]["notes"] == []
    assert run.of("note") == []


def test_hosts_that_are_suspected_and_avoided_reach_the_launcher() -> None:
    def fail_to_start(group: FakeTaskGroup) -> None:
        group.fail_task("worker/1", FailureKind.START)

    run = Run([place, fail_to_start], [place, fail_to_start], [place, train, finish])
    assert run.controller.run().state is RunState.SUCCEEDED
    nobody, second = frozenset[str](), frozenset({"10.0.0.2"})
    assert run.launcher.suspected == [nobody, second, nobody]
    assert run.launcher.avoided == [nobody, nobody, second]
