"""What RunMachine does about tasks that hang, have to leave, or could be more."""

from __future__ import annotations

import dataclasses

import pytest

from raydist.controller.events import (
    Action,
    AttemptPlanned,
    Await,
    Deadline,
    DeadlinePassed,
    Event,
    GroupStopped,
    GroupUpdated,
    ReplaceTask,
    RoomFound,
    SendCommand,
    StartAttempt,
    StopGroup,
)
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.controller.watchdog import SILENCE_S
from raydist.outcome.status import CodePlace, Command, FailureKind, RunState, TaskState, TaskStatus
from raydist.planning.fitting import resized
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy, WorkerRange
from tests.support.fakes import make_failure, make_plan, make_status, task

IN_FIT = CodePlace(where="bad.py:9 (train)", is_waiting=True, stack="...")
IN_CALLBACK = CodePlace(where="bad.py:53 (on_epoch_end)", stack="...")
SAVE, SAVE_LAST = (
    [SendCommand(command, (task("worker/0"),)), Await(Deadline.SAVE)]
    for command in (Command.SAVE, Command.SAVE_LAST)
)


def elastic_plan(workers: int = 2) -> Plan:
    return make_plan(workers=workers, workers_range=WorkerRange(minimum=1, maximum=4))


class Run:
    """A machine whose tasks train, and a clock that advances with each event."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or make_plan()
        self.machine = RunMachine(self.plan)
        self.now_s = 0.0
        self.train()

    def train(self, **fields: object) -> None:
        self.say(*(str(each) for each in self.machine.plan.tasks), **fields)

    def say(self, *names: str, **fields: object) -> list[Action]:
        return self.update(*(make_status(name, **{"num_steps": 1000, **fields}) for name in names))

    def update(self, *statuses: TaskStatus) -> list[Action]:
        self.now_s += 1.0
        update = GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True)
        return self.machine.handle(GroupUpdated(update, self.now_s, self.now_s))

    def fall_silent(self, *speaking: str, seconds: float = SILENCE_S + 1, **fields: object) -> list[Action]:
        """Lets time pass in which only some speak, until there is something to do."""
        for _ in range(int(seconds)):
            if actions := self.say(*speaking, **fields):
                return actions
        return []

    def handle(self, *events: Event) -> list[Action]:
        actions: list[Action] = []
        for event in events:
            actions = self.machine.handle(event)
        return actions


def test_silent_worker_ends_the_attempt_like_a_dead_one() -> None:
    run = Run()
    assert run.fall_silent("worker/0") == [StopGroup(for_another=True)]
    assert run.handle(GroupStopped()) == [StartAttempt(1, suspected=frozenset({"10.0.0.2"}))]
    assert "worker/1 failed first (attempt 0): SilentTask: it has sent no heartbeat" in run.machine.notes[0]


def test_silent_worker_of_parameter_servers_is_replaced() -> None:
    run = Run(make_plan(strategy=Strategy.PARAMETER_SERVER))
    assert run.fall_silent("chief/0", "worker/0", "ps/0") == [ReplaceTask(task("worker/1"))]
    assert run.machine.state is RunState.RUNNING


def test_silence_explains_what_peers_fail_of() -> None:
    run = Run()
    run.fall_silent("worker/0", seconds=6)
    collateral = make_failure("worker/0", FailureKind.COLLATERAL)
    run.update(make_status("worker/0", TaskState.FAILED, failure=collateral))
    assert run.handle(DeadlinePassed(Deadline.GRACE)) == [StopGroup(for_another=True)]
    run.handle(GroupStopped())
    assert run.machine.notes[0].startswith("worker/1 failed first (attempt 0): SilentTask")


@pytest.mark.parametrize(
    ("gap_s", "kind", "is_counted"),
    [
        pytest.param(42.0, FailureKind.LOST, False, id="tasks-gave-it-up"),
        pytest.param(3.0, FailureKind.LOST, True, id="busy-driver"),
        pytest.param(42.0, FailureKind.USER, True, id="own-error"),
    ],
)
def test_tasks_that_die_while_the_driver_stands_still_are_not_counted(
    gap_s: float, kind: FailureKind, is_counted: bool
) -> None:
    run = Run(make_plan(max_failures=0))
    run.now_s += gap_s
    failure = make_failure("worker/1", kind)
    assert run.update(make_status("worker/1", TaskState.FAILED, failure=failure)) == [
        StopGroup(for_another=not is_counted)
    ]
    run.handle(GroupStopped())
    assert run.machine.state is (RunState.FAILED if is_counted else RunState.STARTING)
    if not is_counted:
        [restart] = run.machine.restarts
        assert restart.sentence().startswith(
            "the process that drives the run stood still for 43 s, so its tasks gave it up: training was"
        )


def test_stalled_attempt_shows_its_stacks_and_is_retried() -> None:
    run = Run(make_plan(stall_timeout=30.0))
    dump = SendCommand(Command.DUMP_STACKS, run.plan.tasks)
    assert run.fall_silent("worker/0", "worker/1", step=7) == [dump, Await(Deadline.STACKS)]
    assert run.say("worker/0", step=7, place=IN_FIT) == []
    assert run.say("worker/1", step=7, place=IN_CALLBACK) == [StopGroup(for_another=True)]
    assert run.handle(GroupStopped()) == [StartAttempt(1)]
    assert run.machine.notes[0].startswith(
        "worker/1 failed first (attempt 0): Stalled: no task has made progress after step 7 for 30 s "
        "(--stall-timeout): worker/1 is in bad.py:53 (on_epoch_end), the others wait for it; the stacks"
    )


def test_tasks_that_do_not_say_where_they_are_stall_all_the_same() -> None:
    run = Run(make_plan(stall_timeout=30.0))
    run.fall_silent("worker/0", "worker/1", step=7)
    assert run.handle(DeadlinePassed(Deadline.STACKS)) == [StopGroup(for_another=True)]
    run.handle(GroupStopped())
    assert "for 30 s (--stall-timeout); the stacks of all tasks are" in run.machine.notes[0]


def test_tasks_that_go_on_when_they_are_asked_where_they_are_train_on() -> None:
    run = Run(make_plan(stall_timeout=30.0))
    run.fall_silent("worker/0", "worker/1", step=7)
    assert run.say("worker/0", "worker/1", step=8) == []
    assert run.handle(DeadlinePassed(Deadline.STACKS)) == []
    assert run.machine.state is RunState.RUNNING


def test_second_stall_at_the_same_step_is_final() -> None:
    run = Run(make_plan(stall_timeout=30.0))
    run.fall_silent("worker/0", "worker/1", step=7)
    run.handle(DeadlinePassed(Deadline.STACKS), GroupStopped())
    run.train()
    run.fall_silent("worker/0", "worker/1", step=7)
    run.handle(DeadlinePassed(Deadline.STACKS), GroupStopped())
    assert run.machine.state is RunState.FAILED
    assert run.machine.error.message.endswith("not retried: it stood still at step 7 before")


def leaving(name: str, **fields: object) -> TaskStatus:
    return make_status(name, leaving="SIGTERM", **fields)


def test_worker_that_has_to_leave_may_wait_for_a_checkpoint_of_the_last_step() -> None:
    run = Run()
    assert run.update(leaving("worker/1")) == SAVE_LAST
    assert run.update(leaving("worker/1")) == []
    assert run.say("worker/0", step=9, checkpoint="/c/step-8-a0") == []  # it was under way
    assert run.say("worker/0", step=9, checkpoint="/c/step-9-a0") == [StopGroup(for_another=True)]
    assert run.handle(GroupStopped()) == [StartAttempt(1)]
    run.train()
    run.say("worker/0", restored_step=9, first_step_at_s=1.0)
    sentence = run.machine.restarts[0].sentence()
    assert sentence.startswith("worker/1 had to leave (SIGTERM): training was restarted from the checkpoint")
    assert run.machine.notes == ()


def test_worker_that_has_to_leave_is_not_waited_for_for_ever() -> None:
    run = Run()
    run.update(leaving("worker/1"))
    assert run.handle(DeadlinePassed(Deadline.SAVE)) == [StopGroup(for_another=True)]


def test_chief_that_stands_still_for_a_restart_gets_it_also_where_its_reason_is_gone() -> None:
    run = Run(elastic_plan())
    assert run.handle(RoomFound(3)) == SAVE  # it trains on
    assert run.update(leaving("worker/1")) == SAVE_LAST
    assert run.update(leaving("worker/1", state=TaskState.FINISHED)) == []
    assert run.say("worker/0", checkpoint="/c/step-9-a0") == [StopGroup(for_another=True)]


def test_death_of_a_worker_that_had_to_leave_is_not_counted() -> None:
    run = Run(make_plan(max_failures=0))
    run.update(leaving("worker/1"))
    dead = make_failure("worker/1", FailureKind.LOST)
    run.update(leaving("worker/1", state=TaskState.FAILED, failure=dead))
    assert run.handle(GroupStopped()) == [StartAttempt(1)]
    assert run.machine.notes[0].endswith("retried: it had to leave, not counted")


def saved(name: str, **fields: object) -> TaskStatus:
    failure = make_failure(name, FailureKind.SAVED, wants_retry=True)
    return make_status(name, state=TaskState.FAILED, failure=failure, **fields)


def test_program_that_saves_by_itself_before_it_moves_costs_no_failure() -> None:
    run = Run(make_plan(max_failures=0))
    run.update(leaving("worker/1"))
    assert run.update(saved("worker/1", leaving="SIGTERM")) == []  # the chief saves still
    assert run.update(saved("worker/0")) == [StopGroup(for_another=True)]
    assert run.handle(GroupStopped()) == [StartAttempt(1)]
    run.train(saves_by_itself=True, first_step_at_s=1.0)
    assert run.machine.restarts[0].sentence() == "worker/1 had to leave (SIGTERM): training was restarted"
    assert run.machine.notes == ()


@pytest.mark.parametrize("last", ["chief", "deadline", "error"])
def test_program_that_saves_and_ends_by_itself_has_all_workers_save(last: str) -> None:
    run = Run()
    assert run.update(saved("worker/1")) == [Await(Deadline.SAVE)]
    error = make_failure("worker/0", FailureKind.USER, wants_retry=True)
    ends: dict[str, Event] = {
        "chief": GroupUpdated(GroupUpdate(statuses=(saved("worker/0"),))),
        "deadline": DeadlinePassed(Deadline.SAVE),
        "error": GroupUpdated(
            GroupUpdate(statuses=(make_status("worker/0", state=TaskState.FAILED, failure=error),))
        ),
    }
    assert run.handle(ends[last]) == [StopGroup(for_another=True, keeps_state=last != "error")]
    run.handle(GroupStopped())
    assert run.machine.notes[0].endswith("retried: failure 1 of 3 allowed")


def test_worker_of_parameter_servers_may_leave_unnoticed() -> None:
    run = Run(make_plan(strategy=Strategy.PARAMETER_SERVER))
    assert run.update(leaving("worker/1")) == []


def test_run_grows_at_a_checkpoint() -> None:
    run = Run(elastic_plan())
    assert run.handle(RoomFound(3)) == SAVE
    assert run.say("worker/0", checkpoint="/c/step-9") == [StopGroup(for_another=True)]
    assert run.handle(GroupStopped()) == [StartAttempt(1)]
    assert run.handle(AttemptPlanned(resized(run.plan, 3))) == []
    assert [str(each) for each in run.machine.attempt.tasks] == ["worker/0", "worker/1", "worker/2"]
    assert run.machine.notes == ("attempt 1 trains with 3 workers instead of 2",)
    what = "there is room for 3 workers instead of 2: training was restarted"
    assert run.machine.restarts[0].sentence() == what


def test_run_that_cannot_save_does_not_grow() -> None:
    run = Run(elastic_plan())
    run.handle(RoomFound(3))
    assert run.handle(DeadlinePassed(Deadline.SAVE)) == []
    assert run.say("worker/0", checkpoint="/c/step-9") == []


def test_room_that_is_gone_is_not_grown_into() -> None:
    run = Run(elastic_plan())
    run.handle(RoomFound(3), RoomFound(2))
    assert run.say("worker/0", checkpoint="/c/step-9") == []


@pytest.mark.parametrize(("num_workers", "actions"), [(1, [StopGroup(for_another=True)]), (2, []), (4, [])])
def test_start_that_waits_for_too_much_is_begun_again(num_workers: int, actions: list[Action]) -> None:
    machine = RunMachine(elastic_plan())
    assert machine.may_resize
    assert machine.handle(RoomFound(num_workers)) == actions


def test_only_elastic_runs_that_have_less_may_grow() -> None:
    assert Run(elastic_plan(2)).machine.may_resize
    assert not Run(elastic_plan(4)).machine.may_resize
    assert not Run(make_plan()).machine.may_resize


def test_host_that_failed_twice_is_avoided() -> None:
    run = Run()
    for number in (1, 2):
        dead = make_failure("worker/1", FailureKind.LOST)
        run.update(make_status("worker/1", TaskState.FAILED, failure=dead))
        avoid = frozenset({"10.0.0.2"} if number == 2 else ())
        assert run.handle(GroupStopped()) == [StartAttempt(number, avoid)]
        run.train()


def test_plan_of_the_same_size_is_no_news() -> None:
    machine = RunMachine(elastic_plan())
    machine.handle(AttemptPlanned(dataclasses.replace(machine.plan, avoid=("n1",))))
    assert machine.notes == ()


def test_host_that_was_lost_is_looked_at_before_it_is_used_again() -> None:
    run = Run()
    lost = make_failure("worker/1", FailureKind.LOST, is_host_in_doubt=True)
    run.update(make_status("worker/1", TaskState.FAILED, failure=lost))
    assert run.handle(GroupStopped()) == [StartAttempt(1, suspected=frozenset({"10.0.0.2"}))]


def test_what_an_attempt_does_with_unfit_hosts_stays_in_the_notes() -> None:
    machine = RunMachine(make_plan())
    uses = ("does without host 10.0.0.2 (disk: full)",)
    machine.handle(AttemptPlanned(dataclasses.replace(machine.plan, uses_of_unfit_hosts=uses)))
    machine.handle(AttemptPlanned(dataclasses.replace(machine.plan, uses_of_unfit_hosts=())))
    assert machine.notes == ("attempt 0 does without host 10.0.0.2 (disk: full)",)
