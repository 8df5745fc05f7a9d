from __future__ import annotations

import json

import pytest

from raydist import errors
from raydist.controller.events import CancelRequested, GroupStopped, GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.result import RunResult, result_of
from raydist.controller.run_error import RunError
from raydist.controller.states import RunState
from raydist.controller.task_group import GroupUpdate
from raydist.spec.job import Strategy
from raydist.spec.status import FailureKind, TaskState
from tests.support.fakes import PLACES, make_failure, make_plan, make_status, task


def result_after(*updates: GroupUpdate, notes: tuple[str, ...] = ()) -> RunResult:
    machine = RunMachine(make_plan(notes=notes))
    for update in updates:
        machine.handle(GroupUpdated(update))
    if machine.state is RunState.STOPPING:
        machine.handle(GroupStopped())
    return result_of(machine, places=PLACES, timings={"ray": 0.5, "total": 3.0})


def ended(state: RunState, error_type: str | None = None) -> RunResult:
    error = error_type and RunError(type=error_type, message="why", task=task("worker/1"), attempt=0)
    return RunResult(
        run="r",
        state=state,
        strategy="one_device",
        keras="3",
        attempts=1,
        steps=4,
        storage="/runs/r",
        error=error or None,
    )


FINISHED = GroupUpdate(
    statuses=(
        make_status("worker/0", TaskState.FINISHED, step=8, metrics={"loss": 0.25}, checkpoint="/runs/r/c"),
        make_status("worker/1", TaskState.FINISHED, step=8, notes=("from the task",)),
    )
)


def test_keys_are_those_that_submit_promises() -> None:
    assert result_after(FINISHED, notes=("from the plan",)).as_dict() == {
        "run": "r",
        "state": "SUCCEEDED",
        "strategy": "multi_worker_mirrored",
        "keras": "3",
        "attempts": 1,
        "steps": 8,
        "steps_repeated": 0,
        "metrics": {"loss": 0.25},
        "evaluation": None,
        "checkpoint": "/runs/r/c",
        "storage": "/runs/r",
        "tasks": [
            {
                "task": f"worker/{index}",
                "state": "FINISHED",
                "steps": 8,
                "host": f"10.0.0.{index + 1}",
                "pid": 100 + index,
                "address": f"10.0.0.{index + 1}:3333",
            }
            for index in range(2)
        ],
        "error": None,
        "notes": ["from the plan", "from the task"],
        "timings": {"ray": 0.5, "placement": None, "tasks_ready": None, "first_step": None, "total": 3.0},
    }


def test_same_keys_hold_before_anything_is_known() -> None:
    result = result_after()
    assert result.as_dict().keys() == result_after(FINISHED).as_dict().keys()
    assert result.as_dict()["tasks"][1] == {
        "task": "worker/1",
        "state": "PENDING",
        "steps": 0,
        "host": None,
        "pid": None,
        "address": None,
    }
    assert result.state is RunState.STARTING


def parameter_server_after(*updates: GroupUpdate) -> RunResult:
    machine = RunMachine(make_plan(strategy=Strategy.PARAMETER_SERVER, is_evaluated=True))
    for update in updates:
        machine.handle(GroupUpdated(update))
    return result_of(machine, places=PLACES, timings={})


def test_evaluation_and_repeated_steps_are_told() -> None:
    result = parameter_server_after(
        GroupUpdate(
            statuses=(
                make_status("chief/0", step=130, steps_repeated=3, metrics={"loss": 0.5}),
                make_status("evaluator/0", step=100, lag_steps=20, metrics={"loss": 0.7}),
            )
        )
    ).as_dict()
    assert (result["steps"], result["steps_repeated"], result["metrics"]) == (130, 3, {"loss": 0.5})
    assert result["evaluation"] == {"step": 100, "lag_steps": 20, "metrics": {"loss": 0.7}}


def test_replaced_task_has_no_process_until_the_next_one_is_up() -> None:
    failure = make_failure("worker/1", FailureKind.LOST)
    died = make_status("worker/1", TaskState.FAILED, failure=failure)
    back = make_status("worker/1", life=1, pid=999)
    known = GroupUpdate(statuses=(make_status("worker/1"),), all_addressed=True)
    updates = (known, GroupUpdate(statuses=(died,)))

    def worker_1(result: RunResult) -> tuple[object, ...]:
        return next((t.state.name, t.pid, t.address) for t in result.tasks if str(t.task) == "worker/1")

    assert worker_1(parameter_server_after(*updates)) == ("PENDING", None, None)
    later = parameter_server_after(*updates, GroupUpdate(statuses=(back,)))
    assert worker_1(later) == ("RUNNING", 999, "10.0.0.2:3333")
    assert later.notes == (
        "worker/1 died (attempt 0, step 0): killed by SIGKILL; back in service after 0.0 s",
    )


def test_error_names_task_attempt_and_log_and_keeps_the_traceback_out_of_the_dict() -> None:
    failure = make_failure("worker/1", traceback="Traceback: line 7")
    result = result_after(GroupUpdate(statuses=(make_status("worker/1", TaskState.FAILED, failure=failure),)))
    assert result.as_dict()["error"] == {
        "type": "ValueError",
        "message": "worker/1 failed first (attempt 0): ValueError: bad batch; also stopped: worker/0",
        "task": "worker/1",
        "attempt": 0,
        "log": "/runs/r/logs/0/worker-1",
    }
    assert result.traceback == "Traceback: line 7"
    assert "Traceback" not in json.dumps(result.as_dict())


@pytest.mark.parametrize(
    ("state", "error_type", "exit_code"),
    [
        (RunState.SUCCEEDED, None, 0),
        (RunState.STARTING, None, 0),
        (RunState.FAILED, "ValueError", 1),
        (RunState.FAILED, "TrainingError", 1),
        (RunState.FAILED, "UnsupportedError", 2),
        (RunState.FAILED, "ClusterError", 3),
        (RunState.FAILED, "StartTimeoutError", 3),
        (RunState.FAILED, "StorageError", 4),
        (RunState.FAILED, "CheckpointError", 4),
        (RunState.CANCELLED, None, 130),
    ],
)
def test_exit_code_follows_state_and_error(state: RunState, error_type: str | None, exit_code: int) -> None:
    assert ended(state, error_type).exit_code == exit_code


@pytest.mark.parametrize(
    ("error_type", "error_class"),
    [
        ("ValueError", errors.TaskFailedError),
        ("RaydistErrors", errors.TaskFailedError),
        ("UnsupportedError", errors.UnsupportedError),
        ("StartTimeoutError", errors.StartTimeoutError),
        ("StorageError", errors.StorageError),
    ],
)
def test_failed_run_raises_the_error_that_says_the_same(
    error_type: str, error_class: type[errors.RaydistError]
) -> None:
    with pytest.raises(error_class, match="why") as caught:
        ended(RunState.FAILED, error_type).raise_for_state()
    assert (type(caught.value), caught.value.task, caught.value.attempt) == (error_class, "worker/1", 0)


def test_succeeded_run_raises_nothing() -> None:
    ended(RunState.SUCCEEDED).raise_for_state()


def test_cancelled_run_raises() -> None:
    machine = RunMachine(make_plan())
    for event in (CancelRequested(), GroupStopped()):
        machine.handle(event)
    with pytest.raises(errors.TrainingError, match="run r was cancelled at step 0"):
        result_of(machine, places=PLACES, timings={}).raise_for_state()
