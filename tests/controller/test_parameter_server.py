"""The machine under ParameterServer, where the tasks of an attempt come and go."""

from __future__ import annotations

import pytest

from raydist.controller.events import (
    AddWorkers,
    Await,
    CancelRequested,
    Deadline,
    DeadlinePassed,
    Event,
    GroupStopped,
    GroupUpdated,
    RemoveWorkers,
    ReplaceTask,
    RoomFound,
    SendCommand,
    StartAttempt,
    StopGroup,
)
from raydist.controller.machine import RunMachine
from raydist.controller.replacement import MAX_QUICK_DEATHS
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Command, FailureKind, RunState, TaskState, TaskStatus
from raydist.spec.job import RunOn, Strategy, WorkerRange
from tests.support.fakes import make_failure, make_plan, make_status, task

STARTING, RUNNING, FINISHED = TaskState.STARTING, TaskState.RUNNING, TaskState.FINISHED
TRAINERS = ("chief/0", "worker/0", "worker/1", "ps/0")
ELSEWHERE = {"host": "10.0.0.9", "address": "10.0.0.9:4444"}

RESTART = StopGroup(for_another=True)
REPLACE_1 = ReplaceTask(task("worker/1"))
SAVE = SendCommand(Command.SAVE, (task("chief/0"),))
FINISH = SendCommand(Command.FINISH, (task("evaluator/0"),))


def news(*statuses: TaskStatus, at_s: float = 0.0, all_addressed: bool = True) -> GroupUpdated:
    update = GroupUpdate(statuses=statuses, all_placed=True, all_addressed=all_addressed)
    return GroupUpdated(update, at_s)


def says(name: str, state: TaskState = RUNNING, *, at_s: float = 0.0, **fields: object) -> GroupUpdated:
    return news(make_status(name, state, **fields), at_s=at_s)


def dies(
    name: str,
    kind: FailureKind = FailureKind.LOST,
    *,
    at_s: float = 0.0,
    incarnation: int = 0,
    **fields: object,
) -> GroupUpdated:
    failure = make_failure(name, kind, at_s=at_s, **fields)
    return says(name, TaskState.FAILED, failure=failure, incarnation=incarnation, at_s=at_s)


def machine_after(*events: Event, is_evaluated: bool = False, workers: int = 2, **job: object) -> RunMachine:
    plan = make_plan(strategy=Strategy.PARAMETER_SERVER, workers=workers, is_evaluated=is_evaluated, **job)
    machine = RunMachine(plan)
    for event in events:
        machine.handle(event)
    return machine


def evaluated_after(*events: Event) -> RunMachine:
    return machine_after(*events, is_evaluated=True)


def training(*, is_evaluated: bool = False, state: TaskState = RUNNING) -> GroupUpdated:
    names = (*TRAINERS, "evaluator/0") if is_evaluated else TRAINERS
    return news(*(make_status(name, state) for name in names))


TRAINING = training()
EVALUATED = training(is_evaluated=True)


def state_of(machine: RunMachine, name: str) -> TaskState:
    return machine.attempt.state_of(task(name))


def error_of(machine: RunMachine) -> str:
    return machine.error.message


def test_dead_worker_is_replaced_and_the_run_goes_on() -> None:
    machine = machine_after(TRAINING)
    assert machine.handle(dies("worker/1", at_s=100)) == [REPLACE_1]
    assert (machine.state, state_of(machine, "worker/1")) == (RunState.RUNNING, TaskState.PENDING)
    assert machine.handle(says("worker/1", STARTING, incarnation=1, at_s=101)) == []
    assert machine.handle(says("worker/1", incarnation=1, at_s=104)) == []
    assert (machine.state, machine.attempt.number) == (RunState.RUNNING, 0)
    assert machine.deaths.sentences() == (
        "worker/1 died (attempt 0, step 0): killed by SIGKILL; back in service after 4.0 s",
    )
    assert machine.notes == ()


def test_death_is_answered_once() -> None:
    machine = machine_after(TRAINING, dies("worker/1"))
    assert machine.handle(dies("worker/1")) == []
    assert machine.handle(news()) == []


def test_late_words_of_a_dead_process_are_ignored() -> None:
    machine = machine_after(TRAINING, dies("worker/1"), says("worker/1", STARTING, incarnation=1))
    assert machine.handle(says("worker/1", RUNNING, incarnation=0)) == []
    assert machine.handle(dies("worker/1", FailureKind.USER, incarnation=0)) == []
    assert state_of(machine, "worker/1") is STARTING


def test_replacement_that_dies_is_replaced() -> None:
    machine = machine_after(TRAINING, dies("worker/1"), says("worker/1", STARTING, incarnation=1))
    assert machine.handle(dies("worker/1", incarnation=1)) == [REPLACE_1]
    assert machine.attempt.statuses[task("worker/1")].incarnation == 2


def test_worker_is_replaced_while_the_attempt_still_starts() -> None:
    machine = machine_after(training(state=STARTING))
    assert machine.handle(dies("worker/1")) == [REPLACE_1]
    assert machine.state is RunState.STARTING
    others = [make_status(name) for name in TRAINERS if name != "worker/1"]
    machine.handle(news(*others))
    assert machine.state is RunState.STARTING
    machine.handle(says("worker/1", incarnation=1))
    assert machine.state is RunState.RUNNING


def test_worker_that_dies_before_the_addresses_are_known_costs_an_attempt() -> None:
    machine = machine_after(news(make_status("worker/1", STARTING), all_addressed=False))
    failure = make_failure("worker/1", FailureKind.LOST)
    died = make_status("worker/1", TaskState.FAILED, failure=failure)
    assert machine.handle(news(died, all_addressed=False)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.deaths.all == []


def test_worker_that_dies_during_the_last_save_is_replaced() -> None:
    machine = machine_after(
        TRAINING, says("chief/0", step=5, first_step_at_s=1.0), DeadlinePassed(Deadline.RUN)
    )
    assert machine.handle(dies("worker/1")) == [REPLACE_1]


@pytest.mark.parametrize("name", ["ps/0", "chief/0"])
def test_dead_ps_or_chief_costs_an_attempt(name: str) -> None:
    machine = machine_after(TRAINING)
    assert machine.handle(dies(name)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.notes[0].startswith(
        f"{name} failed first (attempt 0): ProcessDied: killed by SIGKILL; also"
    )


def test_exception_in_a_worker_is_no_death() -> None:
    machine = machine_after(TRAINING)
    assert machine.handle(dies("worker/1", FailureKind.USER)) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.FAILED


def test_exception_in_the_chief_is_judged_by_its_own_progress_not_by_the_evaluators() -> None:
    machine = evaluated_after(EVALUATED, says("evaluator/0", step=100, restored_step=100))
    machine.handle(says("chief/0", step=90))
    failure = make_failure("chief/0", step=90)
    machine.handle(says("chief/0", TaskState.FAILED, step=90, failure=failure))
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]


def test_ps_that_dies_while_a_worker_is_replaced_costs_an_attempt() -> None:
    machine = machine_after(TRAINING, dies("worker/1", at_s=1))
    assert machine.handle(dies("ps/0", at_s=2)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.notes[0].startswith("ps/0 failed first")


def test_chief_that_cannot_cope_with_a_death_is_told_as_its_consequence() -> None:
    machine = machine_after(TRAINING, dies("worker/1"))
    gone = "failed to connect to all addresses; last error: Connection refused"
    chief = dies("chief/0", FailureKind.USER, error_type="UnavailableError", message=gone)
    assert machine.handle(chief) == [Await(Deadline.GRACE)]
    assert machine.handle(DeadlinePassed(Deadline.GRACE)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.notes[0].startswith("worker/1 failed first (attempt 0): ProcessDied: killed by SIGKILL;")


def test_chief_that_sees_a_death_before_us_waits_for_the_cause() -> None:
    machine = machine_after(TRAINING)
    chief = dies("chief/0", FailureKind.USER, error_type="PSUnavailableError", message="Socket closed")
    assert machine.handle(chief) == [Await(Deadline.GRACE)]
    assert machine.handle(dies("ps/0")) == [RESTART]
    machine.handle(GroupStopped())
    assert machine.notes[0].startswith("ps/0 failed first (attempt 0)")


def test_worker_that_dies_while_a_failure_is_looked_into_is_not_replaced() -> None:
    machine = machine_after(TRAINING, dies("chief/0", FailureKind.COLLATERAL))
    assert machine.handle(dies("worker/1")) == [RESTART]


def test_worker_that_keeps_dying_costs_an_attempt() -> None:
    machine = machine_after(TRAINING, max_failures=0)
    for incarnation in range(MAX_QUICK_DEATHS):
        assert machine.handle(dies("worker/1", incarnation=incarnation)) == [REPLACE_1]
    assert machine.handle(dies("worker/1", incarnation=MAX_QUICK_DEATHS)) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.FAILED
    assert error_of(machine).startswith("worker/1 failed first (attempt 0): ProcessDied: killed by SIGKILL")


def test_missing_replacement_is_named_at_the_start_deadline() -> None:
    machine = machine_after(training(state=STARTING), dies("worker/1"), max_failures=0)
    machine.handle(DeadlinePassed(Deadline.START))
    assert "(--start-timeout): worker/1 (PENDING);" in error_of(machine)


def test_chief_is_named_last_at_the_start_deadline() -> None:
    machine = machine_after(training(state=STARTING), says("worker/0"), says("ps/0"), max_failures=0)
    machine.handle(DeadlinePassed(Deadline.START))
    assert "(--start-timeout): worker/1 at 10.0.0.2:3333 (STARTING);" in error_of(machine)
    assert "chief" not in error_of(machine).partition(";")[0]


def test_chief_is_named_at_the_start_deadline_when_all_servers_are_up() -> None:
    plan = make_plan(strategy=Strategy.PARAMETER_SERVER, is_evaluated=True, max_failures=0)
    machine = RunMachine(plan)
    machine.handle(training(is_evaluated=True, state=STARTING))
    machine.handle(news(*(make_status(name) for name in TRAINERS[1:])))
    machine.handle(DeadlinePassed(Deadline.START))
    assert "chief/0 at 10.0.0.1:3333 (STARTING), evaluator/0 at" in error_of(machine)


def test_evaluator_is_told_once_when_the_chief_is_done() -> None:
    machine = evaluated_after(EVALUATED)
    assert machine.handle(says("chief/0", FINISHED)) == [FINISH]
    assert machine.handle(says("evaluator/0", step=100)) == []
    assert machine.handle(says("evaluator/0", FINISHED)) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED


def test_evaluator_that_starts_later_than_the_chief_ends_is_told_as_soon_as_it_runs() -> None:
    machine = evaluated_after(training(is_evaluated=True, state=STARTING))
    assert machine.handle(says("chief/0", FINISHED)) == []
    assert machine.handle(says("evaluator/0")) == [FINISH]
    assert machine.state is RunState.RUNNING


def test_evaluator_that_dies_after_training_is_replaced_and_told_again() -> None:
    machine = evaluated_after(EVALUATED, says("chief/0", FINISHED))
    assert machine.handle(dies("evaluator/0")) == [ReplaceTask(task("evaluator/0"))]
    assert machine.handle(says("evaluator/0", STARTING, incarnation=1)) == []
    assert machine.handle(says("evaluator/0", incarnation=1)) == [FINISH]
    assert machine.handle(says("evaluator/0", FINISHED, incarnation=1)) == [StopGroup()]


def test_evaluator_of_the_next_attempt_is_told_again() -> None:
    machine = evaluated_after(EVALUATED, says("chief/0", FINISHED), dies("evaluator/0", FailureKind.START))
    machine.handle(GroupStopped())
    machine.handle(EVALUATED)
    assert machine.handle(says("chief/0", FINISHED)) == [FINISH]


@pytest.mark.parametrize("name", ["worker/1", "ps/0"])
@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.USER])
def test_server_that_fails_after_the_chief_is_done_costs_nothing(name: str, kind: FailureKind) -> None:
    machine = evaluated_after(EVALUATED, says("chief/0", FINISHED))
    assert machine.handle(dies(name, kind)) == []
    assert machine.handle(says("evaluator/0", FINISHED)) == [StopGroup()]


def test_server_that_fails_just_before_the_chief_is_done_costs_nothing() -> None:
    machine = evaluated_after(EVALUATED)
    assert machine.handle(dies("worker/1", FailureKind.COLLATERAL)) == [Await(Deadline.GRACE)]
    assert machine.handle(says("chief/0", FINISHED)) == [FINISH]
    assert machine.state is RunState.RUNNING
    assert machine.handle(says("evaluator/0", FINISHED)) == [StopGroup()]


def test_run_succeeds_without_an_evaluator_that_was_given_up() -> None:
    machine = evaluated_after(EVALUATED)
    for incarnation in range(MAX_QUICK_DEATHS + 1):
        machine.handle(dies("evaluator/0", incarnation=incarnation))
    assert machine.handle(says("chief/0", FINISHED)) == [StopGroup()]


def test_evaluator_that_is_given_up_after_training_ends_the_run() -> None:
    machine = evaluated_after(EVALUATED, says("chief/0", FINISHED))
    for incarnation in range(MAX_QUICK_DEATHS + 1):
        machine.handle(dies("evaluator/0", incarnation=incarnation))
    assert machine.handle(news()) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED


# --- Workers that come back elsewhere

MOVED: list[Event] = [
    TRAINING,
    says("chief/0", step=120, checkpoint="/c/step-100"),
    dies("worker/1", at_s=10),
    says("worker/1", STARTING, incarnation=1, at_s=12, **ELSEWHERE),
]


def fenced_after(*events: Event, **job: object) -> RunMachine:
    """Returns a machine whose tasks let only the hosts of the start through."""
    return machine_after(*events, fence=True, **job)


def test_worker_that_comes_back_on_another_host_costs_nothing() -> None:
    machine = machine_after(*MOVED[:-1])
    assert machine.handle(MOVED[-1]) == []
    assert machine.handle(says("worker/1", incarnation=1, at_s=15, **ELSEWHERE)) == []
    assert machine.deaths.all[0].outcome == "back at another address after 2.0 s"
    assert (machine.state, machine.restarts) == (RunState.RUNNING, ())


@pytest.mark.parametrize("chief", [{"state": STARTING}, {"is_joining": True}], ids=["starting", "script"])
def test_worker_that_moves_before_the_strategy_is_built_restarts_the_run_at_once(
    chief: dict[str, object],
) -> None:
    machine = machine_after(TRAINING, news(make_status("chief/0", **chief)), dies("worker/1"))
    assert machine.handle(says("worker/1", STARTING, incarnation=1, **ELSEWHERE)) == [RESTART]
    assert machine.restarts[0].sentence() == "worker/1 came back on another host: training was restarted"


def elastic_after(*events: Event, workers: int = 2, **job: object) -> RunMachine:
    return machine_after(*events, workers=workers, workers_range=WorkerRange(minimum=1, maximum=4), **job)


def test_workers_are_added_to_the_attempt_when_there_is_room() -> None:
    machine = elastic_after(TRAINING)
    assert machine.may_resize
    (added,) = machine.handle(RoomFound(3))
    assert isinstance(added, AddWorkers)
    assert (added.plan.num_workers, machine.plan.num_workers) == (3, 3)
    assert [str(each) for each in machine.attempt.tasks][1:4] == ["worker/0", "worker/1", "worker/2"]
    assert not machine.may_resize  # what is free may be for the one that is awaited
    assert machine.handle(says("worker/2", STARTING, address="10.0.0.9:4444")) == []
    assert machine.handle(says("worker/2", address="10.0.0.9:4444")) == []
    assert machine.may_resize
    assert (machine.state, machine.attempt.number, machine.restarts) == (RunState.RUNNING, 0, ())
    assert machine.notes == ("worker/2 was added at step 0: the cluster has room for 3 workers",)
    assert machine.handle(RoomFound(3)) == machine.handle(RoomFound(2)) == []


def test_ps_that_has_to_leave_restarts_a_run_that_may_grow_once_the_chief_has_saved() -> None:
    machine = elastic_after(TRAINING, RoomFound(3))
    assert machine.handle(says("worker/1", leaving="its host is drained")) == []
    asked = [SendCommand(Command.SAVE_LAST, (task("chief/0"),)), Await(Deadline.SAVE)]
    assert machine.handle(says("ps/0", leaving="its host is drained")) == asked
    assert machine.handle(says("chief/0", checkpoint="/c/step-9")) == [StopGroup(for_another=True)]
    assert machine.restarts[0].cause.tasks == (task("ps/0"),)


@pytest.mark.parametrize("job", [{"fence": True}, {"run_on": RunOn.ALL}])
def test_run_whose_tasks_know_no_other_workers_grows_at_a_checkpoint(job: dict[str, object]) -> None:
    machine = elastic_after(TRAINING, **job)
    assert machine.handle(RoomFound(3)) == [SAVE, Await(Deadline.SAVE)]


def test_added_worker_that_cannot_start_is_given_up_and_training_continues() -> None:
    machine = elastic_after(TRAINING, RoomFound(3))
    replace = ReplaceTask(task("worker/2"))
    for incarnation in range(MAX_QUICK_DEATHS):
        assert machine.handle(dies("worker/2", incarnation=incarnation)) == [replace]
    (removed,) = machine.handle(dies("worker/2", incarnation=MAX_QUICK_DEATHS))
    assert isinstance(removed, RemoveWorkers)
    assert (removed.plan.num_workers, machine.plan.num_workers) == (2, 2)
    assert task("worker/2") not in removed.plan.tasks
    assert (machine.state, machine.attempt.failures) == (RunState.RUNNING, ())
    assert machine.deaths.all[-1].is_given_up
    assert machine.handle(news()) == []
    (added,) = machine.handle(RoomFound(3))
    assert isinstance(added, AddWorkers)
    assert [str(each) for each in added.plan.tasks][1:4] == ["worker/0", "worker/1", "worker/3"]
    assert not machine.may_resize


def test_chief_saves_before_it_is_restarted_for_a_worker_on_another_host() -> None:
    machine = fenced_after(*MOVED[:-1])
    assert machine.handle(MOVED[-1]) == [SAVE, Await(Deadline.SAVE)]
    assert machine.state is RunState.RUNNING
    assert machine.handle(says("chief/0", step=125, checkpoint="/c/step-100")) == []
    assert machine.handle(says("chief/0", step=130, checkpoint="/c/step-130", at_s=20)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.state is RunState.STARTING


def test_chief_that_does_not_save_in_time_is_restarted_all_the_same() -> None:
    machine = fenced_after(*MOVED)
    assert machine.handle(DeadlinePassed(Deadline.SAVE)) == [RESTART]
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]


def test_chief_that_does_not_train_yet_is_restarted_at_once() -> None:
    machine = fenced_after(training(state=STARTING), dies("worker/1"))
    assert machine.handle(says("worker/1", STARTING, incarnation=1, **ELSEWHERE)) == [RESTART]


def test_restart_for_a_moved_worker_is_not_counted() -> None:
    machine = fenced_after(*MOVED, DeadlinePassed(Deadline.SAVE), GroupStopped(), TRAINING, max_failures=0)
    assert machine.state is RunState.RUNNING
    assert (machine.attempt.number, machine.error, machine.notes) == (1, None, ())


def test_restart_tells_its_cost_once_training_goes_on() -> None:
    machine = fenced_after(*MOVED)
    machine.handle(says("chief/0", step=130, checkpoint="/c/step-130", at_s=20.0))
    machine.handle(GroupStopped())
    machine.handle(TRAINING)
    what = "worker/1 came back on another host: training was restarted"
    assert [each.sentence() for each in machine.restarts] == [what]
    machine.handle(says("chief/0", step=130, restored_step=130, at_s=26.0))
    assert [each.sentence() for each in machine.restarts] == [what]
    machine.handle(says("chief/0", step=140, restored_step=130, first_step_at_s=28.2, at_s=28.3))
    machine.handle(says("chief/0", step=150, restored_step=130, first_step_at_s=28.2, at_s=30.0))
    assert [each.sentence() for each in machine.restarts] == [
        f"{what} from the checkpoint of step 130 after 8.3 s"
    ]
    assert machine.deaths.all[0].outcome == "back at another address after 2.0 s"


def test_restart_without_a_checkpoint_says_so() -> None:
    machine = fenced_after(TRAINING, dies("worker/1"))
    machine.handle(says("worker/1", STARTING, incarnation=1, address="10.0.0.2:9"))
    for event in (DeadlinePassed(Deadline.SAVE), GroupStopped(), TRAINING):
        machine.handle(event)
    machine.handle(says("chief/0", step=1, first_step_at_s=5.0, at_s=5.0))
    assert machine.restarts[0].sentence() == (
        "worker/1 came back at another port: training was restarted from the beginning after 5.0 s"
    )


def test_chief_without_any_worker_is_restarted_at_once_as_it_cannot_save() -> None:
    machine = fenced_after(*MOVED)
    assert machine.handle(dies("worker/0")) == [RESTART]
    assert machine.restarts[0].sentence().startswith("worker/1 came back on another host: ")


def test_moved_worker_that_dies_again_calls_the_restart_off() -> None:
    machine = fenced_after(*MOVED)
    assert machine.handle(dies("worker/1", incarnation=1)) == [REPLACE_1]
    assert machine.handle(says("chief/0", checkpoint="/c/step-130")) == []
    assert machine.handle(DeadlinePassed(Deadline.SAVE)) == []
    assert machine.handle(says("worker/1", STARTING, incarnation=2, **ELSEWHERE)) == [
        SAVE,
        Await(Deadline.SAVE),
    ]


def test_training_that_ends_while_the_chief_saves_is_a_success() -> None:
    machine = fenced_after(*MOVED)
    assert machine.handle(says("chief/0", FINISHED)) == [StopGroup()]
    machine.handle(GroupStopped())
    assert machine.state is RunState.SUCCEEDED


def test_ps_that_dies_while_the_chief_saves_costs_an_attempt() -> None:
    machine = fenced_after(*MOVED, dies("ps/0"))
    assert machine.handle(GroupStopped()) == [StartAttempt(1)]
    assert machine.restarts == ()
    assert machine.notes[0].startswith("ps/0 failed first")


def test_cancel_while_the_chief_saves_cancels() -> None:
    machine = fenced_after(*MOVED, CancelRequested(), GroupStopped())
    assert machine.state is RunState.CANCELLED


def test_nothing_is_started_anew_for_a_moved_worker_beside_processes_that_could_not_be_stopped() -> None:
    machine = fenced_after(*MOVED, DeadlinePassed(Deadline.SAVE), GroupStopped("RayError: timed out"))
    assert machine.state is RunState.FAILED
    assert error_of(machine).endswith(
        "could not be stopped cleanly: RayError: timed out; so it was not retried"
    )
