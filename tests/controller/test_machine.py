from __future__ import annotations

import pytest

from raydist.controller.events import (
    Await,
    CancelRequested,
    Crashed,
    Deadline,
    DeadlinePassed,
    Event,
    GroupBroken,
    GroupStopped,
    GroupUpdated,
    SendCommand,
    StartAttempt,
    StopGroup,
)
from raydist.controller.machine import InvalidTransitionError, RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.errors import ClusterError, StorageError, TaskFailedError
from raydist.outcome.status import Command, FailureKind, RunState, TaskState, TaskStatus
from raydist.spec.job import EntryPoint, Strategy
from tests.support.fakes import make_failure, make_plan, make_status, task


def updated(*statuses: TaskStatus, all_placed: bool = True) -> GroupUpdated:
    return GroupUpdated(GroupUpdate(statuses=statuses, all_placed=all_placed))


def failed(
    name: str, kind: FailureKind = FailureKind.USER, *, step: int = 0, **fields: object
) -> GroupUpdated:
    failure = make_failure(name, kind, step=step, **fields)
    return updated(make_status(name, TaskState.FAILED, failure=failure, step=step))


TRAINING = updated(make_status("worker/0"), make_status("worker/1"))
LOST = failed("worker/1", FailureKind.LOST)
COLLATERAL = failed("worker/0", FailureKind.COLLATERAL)
ATTEMPT_ENDS: list[Event] = [LOST, GroupStopped()]


def machine_after(*events: Event, max_failures: int = 3, first_attempt: int = 0) -> RunMachine:
    machine = RunMachine(make_plan(max_failures=max_failures, timeout=60.0), first_attempt=first_attempt)
    for event in events:
        machine.handle(event)
    return machine


def error_of(machine: RunMachine) -> str:
    return machine.error.message


def test_run_begins_with_its_first_attempt() -> None:
    assert machine_after(first_attempt=2).start() == [StartAttempt(2)]


def test_run_is_running_once_every_task_trains() -> None:
    machine = machine_after(updated(make_status("worker/0"), make_status("worker/1", TaskState.STARTING)))
    assert machine.state is RunState.STARTING
    assert machine.handle(updated(make_status("worker/1"))) == []
    assert machine.state is RunState.RUNNING


def test_run_succeeds_when_every_task_has_returned_and_the_group_is_stopped() -> None:
    machine = machine_after(TRAINING, updated(make_status("worker/0", TaskState.FINISHED)))
    assert machine.state is RunState.RUNNING
    assert machine.handle(updated(make_status("worker/1", TaskState.FINISHED))) == [StopGroup()]
    machine.handle(GroupStopped())
    assert (machine.state, machine.error) == (RunState.SUCCEEDED, None)


def test_parameter_server_run_succeeds_with_its_chief() -> None:
    machine = RunMachine(make_plan(strategy=Strategy.PARAMETER_SERVER))
    machine.handle(updated(make_status("worker/0"), make_status("worker/1"), make_status("ps/0")))
    assert machine.handle(updated(make_status("chief/0", TaskState.FINISHED))) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED
    assert [machine.attempt.state_of(task).value for task in machine.attempt.tasks] == [
        "FINISHED",
        "STOPPED",
        "STOPPED",
        "STOPPED",
    ]


@pytest.mark.parametrize("events", [[], [TRAINING]], ids=["starting", "running"])
def test_lost_task_stops_the_group_and_starts_the_next_attempt(events: list[Event]) -> None:
    machine = machine_after(*events)
    assert machine.handle(LOST) == [StopGroup(for_another=True)]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert (machine.state, machine.attempt.number) == (RunState.STARTING, 1)
    assert dict(machine.attempt.statuses) == {}
    assert machine.notes == (
        "worker/1 failed first (attempt 0): ProcessDied: killed by SIGKILL; also stopped: worker/0; "
        "retried: failure 1 of 3 allowed",
    )


def test_attempt_after_an_exception_goes_on_from_a_checkpoint_and_not_from_memory() -> None:
    machine = machine_after(TRAINING, updated(make_status("worker/1", step=7)))
    assert machine.handle(failed("worker/1", step=7)) == [StopGroup(for_another=True, keeps_state=False)]
    machine.handle(GroupStopped())
    machine.handle(TRAINING)
    assert machine.handle(LOST) == [StopGroup(for_another=True, keeps_state=True)]


def test_collateral_failure_waits_for_its_cause() -> None:
    machine = machine_after(TRAINING)
    assert machine.handle(COLLATERAL) == [Await(Deadline.GRACE)]
    assert machine.handle(updated(make_status("worker/1", step=3))) == []
    assert machine.handle(failed("worker/1", message="nan loss")) == [StopGroup()]
    machine.handle(GroupStopped())
    assert error_of(machine) == (
        "worker/1 failed first (attempt 0): ValueError: nan loss; also stopped: worker/0"
    )


@pytest.mark.parametrize(
    "end",
    [
        DeadlinePassed(Deadline.GRACE),
        GroupBroken(ClusterError("gone")),
        failed("worker/1", FailureKind.COLLATERAL),
    ],
    ids=["grace-over", "group-broken", "all-tasks-ended"],
)
def test_collateral_failure_without_a_cause_is_retried(end: Event) -> None:
    machine = machine_after(TRAINING, COLLATERAL)
    assert machine.handle(end) == [StopGroup(for_another=True)]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]


def test_user_exception_without_progress_is_final_at_once() -> None:
    machine = machine_after(TRAINING, failed("worker/0", traceback="Traceback …"), GroupStopped())
    assert machine.state is RunState.FAILED
    assert (machine.error.type, machine.error.exit_code) == ("ValueError", 1)
    assert machine.error.traceback == "Traceback …"


def test_user_exception_at_the_same_step_twice_is_final() -> None:
    machine = machine_after(TRAINING, failed("worker/0", step=50), GroupStopped())
    assert machine.attempt.number == 1
    restored = updated(*(make_status(f"worker/{index}", step=40, restored_step=40) for index in range(2)))
    for event in (restored, failed("worker/0", step=50), GroupStopped()):
        machine.handle(event)
    assert machine.state is RunState.FAILED
    assert error_of(machine).endswith("not retried: ValueError was raised at step 50 before")


def test_progress_is_measured_from_the_restored_step() -> None:
    restored = updated(*(make_status(f"worker/{index}", step=40, restored_step=40) for index in range(2)))
    machine = machine_after(*ATTEMPT_ENDS, restored, failed("worker/0", step=40), GroupStopped())
    assert machine.state is RunState.FAILED


@pytest.mark.parametrize(
    ("kind", "error_type", "name", "exit_code"),
    [
        (FailureKind.MISTAKE, "UnsupportedError", "UnsupportedError", 2),
        (FailureKind.MISTAKE, "EmaError", "MistakeError", 2),
        (FailureKind.STORAGE, "CheckpointError", "CheckpointError", 4),
        (FailureKind.STORAGE, "OSError", "StorageError", 4),
        (FailureKind.DEVICE, "DeviceError", "DeviceError", 3),
    ],
)
def test_mistake_and_failure_of_storage_or_device_are_final_with_their_own_exit_code(
    kind: FailureKind, error_type: str, name: str, exit_code: int
) -> None:
    failure = failed("worker/0", kind, step=9, error_type=error_type, message="what; remedy", traceback="…")
    machine = machine_after(TRAINING, failure, GroupStopped())
    assert (machine.error.type, machine.error.exit_code, machine.error.traceback) == (name, exit_code, None)
    assert machine.error.message == "what; remedy"


def test_start_timeout_while_waiting_for_room_is_final_and_says_for_what() -> None:
    machine = machine_after(DeadlinePassed(Deadline.START), GroupStopped())
    assert (machine.error.type, machine.error.exit_code) == ("StartTimeoutError", 3)
    assert machine.error.message == (
        "no room for worker/0, worker/1 within 300 s (--start-timeout): waited for 2 CPUs; "
        "Ray at 10.0.0.1:6379 had 4 CPUs in all. Free some, ask for less, or wait longer with --start-timeout"
    )


def test_start_timeout_after_placement_names_the_missing_task_and_is_retried() -> None:
    started = updated(make_status("worker/0"), make_status("worker/1", TaskState.STARTING))
    machine = machine_after(started, max_failures=1)
    assert machine.handle(DeadlinePassed(Deadline.START)) == [StopGroup(for_another=True)]
    assert machine.handle(GroupStopped()) == [StartAttempt(1, suspected=frozenset({"10.0.0.2"}))]
    for event in (started, DeadlinePassed(Deadline.START), GroupStopped()):
        machine.handle(event)
    assert (machine.error.type, machine.error.exit_code) == ("StartTimeoutError", 3)
    assert "worker/1 at 10.0.0.2:3333 (STARTING)" in machine.error.message


def test_start_timeout_names_the_silent_task_before_those_that_wait_for_it() -> None:
    machine = machine_after(updated(make_status("worker/0", TaskState.STARTING)), max_failures=0)
    machine.handle(DeadlinePassed(Deadline.START))
    assert "(--start-timeout): worker/1 (PENDING);" in error_of(machine)


@pytest.mark.parametrize("events", [[], [TRAINING]], ids=["starting", "running"])
def test_run_timeout_is_final(events: list[Event]) -> None:
    machine = machine_after(*events, DeadlinePassed(Deadline.RUN), GroupStopped())
    assert machine.state is RunState.FAILED
    assert error_of(machine) == "the run did not end within 60 s (--timeout); it was at step 0"


def test_script_that_has_saved_nothing_is_not_waited_for() -> None:
    script = EntryPoint(file="main.py", function=None)
    machine = RunMachine(make_plan(timeout=60.0, entry_point=script))
    for event in (TRAINED, TIMED_OUT, GroupStopped()):
        machine.handle(event)
    assert error_of(machine) == "the run did not end within 60 s (--timeout); it was at step 7"


def test_script_that_saves_by_itself_may_do_so_at_the_end_of_its_time() -> None:
    script = EntryPoint(file="main.py", function=None)
    machine = RunMachine(make_plan(timeout=60.0, entry_point=script))
    machine.handle(updated(make_status("worker/0", saves_by_itself=True), make_status("worker/1")))
    assert machine.handle(TIMED_OUT)[0] == SendCommand(Command.SAVE_LAST, (task("worker/0"),))
    for name in ("worker/1", "worker/0"):
        failure = make_failure(name, FailureKind.SAVED, wants_retry=True)
        machine.handle(updated(make_status(name, state=TaskState.FAILED, failure=failure)))
    machine.handle(GroupStopped())
    assert error_of(machine) == "the run did not end within 60 s (--timeout); it was at step 0"
    assert machine.notes == ()


TIMED_OUT, TOO_LATE = DeadlinePassed(Deadline.RUN), DeadlinePassed(Deadline.SAVE)
RESUMED = "saved: raydist resume continues there"
TRAINED = updated(make_status("worker/0", step=7, first_step_at_s=1.0), make_status("worker/1"))


def at(step: int, *, saved: int) -> TaskStatus:
    return make_status("worker/0", step=step, first_step_at_s=1.0, checkpoint=f"runs/step-{saved}-a0")


SAVED = updated(at(8, saved=8))


@pytest.mark.parametrize(
    ("before", "events", "message"),
    [
        (TRAINED, [SAVED], f"it was at step 8, which is {RESUMED}"),
        (TRAINED, [TOO_LATE], "it was at step 7"),
        (TRAINED, [LOST], "it was at step 7"),
        # One that was under way by then.
        (TRAINED, [updated(at(8, saved=6)), TOO_LATE], f"it was at step 8, and step 6 is {RESUMED}"),
        (
            TRAINED,
            [updated(at(8, saved=6)), updated(at(8, saved=8))],
            f"it was at step 8, which is {RESUMED}",
        ),
        (
            TRAINED,
            [TOO_LATE, GroupStopped(statuses=(at(9, saved=9),))],
            f"it was at step 9, which is {RESUMED}",
        ),
        # It validates, at a step that is saved.
        (updated(at(7, saved=7)), [updated(at(7, saved=7))], f"it was at step 7, which is {RESUMED}"),
    ],
    ids=["saved", "cannot-save", "died", "saved-less", "saved-twice", "saved-late", "was-saved"],
)
def test_run_timeout_saves_the_last_step_and_starts_no_other_attempt(
    before: Event, events: list[Event], message: str
) -> None:
    machine = machine_after(TRAINING, before)
    wanted = [SendCommand(Command.SAVE_LAST, (task("worker/0"),)), Await(Deadline.SAVE)]
    assert machine.handle(TIMED_OUT) == wanted
    for event in (*events, GroupStopped()):  # which is an invalid transition if it stops too early
        machine.handle(event)
    assert machine.state is RunState.FAILED
    assert (machine.error.type, machine.error.exit_code) == ("RunTimeoutError", 124)
    assert machine.error.message == f"the run did not end within 60 s (--timeout); {message}"


@pytest.mark.parametrize(
    ("error", "exit_code"), [(ClusterError("needs 8 GPUs, has 0"), 3), (StorageError("disk full"), 4)]
)
def test_group_that_cannot_be_started_is_final(error: ClusterError | StorageError, exit_code: int) -> None:
    machine = machine_after(GroupBroken(error), GroupStopped())
    assert (machine.error.message, machine.error.exit_code) == (str(error), exit_code)


def test_group_that_breaks_while_running_costs_an_attempt() -> None:
    broken = GroupBroken(ClusterError("the mailbox is gone"))
    machine = machine_after(TRAINING, broken, max_failures=1)
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    for event in (TRAINING, broken, GroupStopped()):
        machine.handle(event)
    assert error_of(machine) == ("the mailbox is gone; not retried: 2 attempts lost, --max-failures is 1")


BEFORE_CANCEL = {
    "starting": [],
    "running": [TRAINING],
    "collecting": [TRAINING, COLLATERAL],
    "stopping-for-a-retry": [TRAINING, LOST],
    "second-attempt": [TRAINING, *ATTEMPT_ENDS],
    "cancelled-before": [TRAINING, CancelRequested()],
}


@pytest.mark.parametrize("events", BEFORE_CANCEL.values(), ids=BEFORE_CANCEL.keys())
def test_cancel_stops_the_group_whatever_the_run_does(events: list[Event]) -> None:
    machine = machine_after(*events)
    assert machine.handle(CancelRequested()) == [StopGroup()]
    assert machine.handle(GroupStopped()) == []
    assert (machine.state, machine.error) == (RunState.CANCELLED, None)


def test_cancel_while_a_failed_run_stops_keeps_why_it_failed() -> None:
    machine = machine_after(TRAINING, failed("worker/0"))
    assert machine.handle(CancelRequested()) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.FAILED


def test_no_attempt_is_started_beside_processes_that_could_not_be_stopped() -> None:
    machine = machine_after(TRAINING, LOST)
    assert machine.handle(GroupStopped("RayError: timed out")) == []
    assert machine.state is RunState.FAILED
    assert error_of(machine).endswith(
        "attempt 0 could not be stopped cleanly: RayError: timed out; so it was not retried"
    )


def test_success_stays_a_success_when_the_group_cannot_be_stopped() -> None:
    machine = machine_after(
        updated(make_status("worker/0", TaskState.FINISHED), make_status("worker/1", TaskState.FINISHED)),
        GroupStopped("RayError: timed out"),
    )
    assert machine.state is RunState.SUCCEEDED
    assert machine.notes == ("attempt 0 could not be stopped cleanly: RayError: timed out",)


def test_what_the_run_reached_outlives_the_attempt() -> None:
    pushed = updated(
        make_status("worker/0", step=55, metrics={"loss": 0.5}, checkpoint="s3://r/step-50-a0", notes=("a",)),
        make_status("worker/1", step=54, metrics={"loss": 9.0}, notes=("a", "b")),
    )
    machine = machine_after(TRAINING, pushed, *ATTEMPT_ENDS)
    assert machine.reached.steps == 55
    assert machine.reached.metrics == {"loss": 0.5}
    assert machine.reached.checkpoint == "s3://r/step-50-a0"
    assert tuple(machine.reached.notes) == ("a", "b")


@pytest.mark.parametrize(
    ("error", "state"), [(RuntimeError("bug"), RunState.FAILED), (KeyboardInterrupt(), RunState.CANCELLED)]
)
def test_crash_of_the_controller_ends_the_run(error: BaseException, state: RunState) -> None:
    machine = machine_after(TRAINING)
    assert machine.handle(Crashed(error)) == []
    assert machine.state is state


@pytest.mark.parametrize(
    ("events", "event"),
    [
        pytest.param([], GroupStopped(), id="stopped-without-being-asked"),
        pytest.param([], DeadlinePassed(Deadline.GRACE), id="grace-without-a-failure"),
        pytest.param([TRAINING], DeadlinePassed(Deadline.START), id="start-deadline-while-running"),
        pytest.param([TRAINING, COLLATERAL], GroupStopped(), id="stopped-while-collecting"),
        pytest.param([TRAINING, LOST], TRAINING, id="news-of-a-stopped-group"),
        pytest.param([TRAINING, LOST], DeadlinePassed(Deadline.RUN), id="run-deadline-while-stopping"),
        pytest.param([CancelRequested(), GroupStopped()], CancelRequested(), id="cancel-after-the-end"),
        pytest.param([CancelRequested(), GroupStopped()], Crashed(RuntimeError()), id="crash-after-the-end"),
    ],
)
def test_event_that_the_state_does_not_allow_is_a_bug(events: list[Event], event: Event) -> None:
    machine = machine_after(*events)
    with pytest.raises(InvalidTransitionError, match=type(event).__name__):
        machine.handle(event)


ROLE_ENDED = GroupBroken(TaskFailedError("features/0 ended by itself", task="features/0"))


@pytest.mark.parametrize("before", [(), (TRAINING,)], ids=["while starting", "while training"])
def test_failed_extra_role_costs_an_attempt(before: tuple[Event, ...]) -> None:
    machine = machine_after(*before, ROLE_ENDED)
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.notes == (
        "attempt 0 was lost: features/0 ended by itself; retried: failure 1 of 3 allowed",
    )


def test_failed_extra_role_ends_the_run_once_its_failures_are_spent() -> None:
    machine = machine_after(TRAINING, ROLE_ENDED, GroupStopped(), max_failures=0)
    assert machine.state is RunState.FAILED
    assert error_of(machine).startswith("features/0 ended by itself; not retried: 1 attempt lost")
    assert machine.error.exit_code == 1


def test_failed_extra_role_is_the_cause_of_what_a_task_met_by_it() -> None:
    machine = machine_after(TRAINING, COLLATERAL)
    assert machine.handle(ROLE_ENDED) == [StopGroup(for_another=True)]
    machine.handle(GroupStopped())
    assert "attempt 0 was lost: features/0 ended by itself" in machine.notes[0]


def test_note_about_an_extra_role_is_told_once() -> None:
    told = GroupUpdated(
        GroupUpdate(statuses=(make_status("worker/0"),), all_placed=True, notes=("it ended",))
    )
    assert machine_after(told, told).notes == ("it ended",)


def test_notes_of_a_task_that_failed_are_taken_when_it_is_gone() -> None:
    last = make_status("worker/1", TaskState.FAILED, failure=make_failure("worker/1"), notes=("it is kept",))
    machine = machine_after(TRAINING, failed("worker/1"), GroupStopped(statuses=(last,)))
    assert tuple(machine.reached.notes) == ("it is kept",)
