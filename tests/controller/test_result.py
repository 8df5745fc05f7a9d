from __future__ import annotations

import json

import pytest

from raydist import errors
from raydist.controller.events import CancelRequested, GroupStopped, GroupUpdated
from raydist.controller.lost_attempts import error_of
from raydist.controller.machine import RunMachine
from raydist.controller.result import result_of
from raydist.controller.root_cause import RootCause
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.codec import from_plain
from raydist.outcome.result import RunError, RunResult
from raydist.outcome.status import FailureKind, RunState, TaskState, TaskStatus
from raydist.spec.job import Strategy
from tests.support.fakes import PLACES, make_failure, make_plan, make_status


def result_after(*updates: GroupUpdate, notes: tuple[str, ...] = ()) -> RunResult:
    machine = RunMachine(make_plan(notes=notes))
    for update in updates:
        machine.handle(GroupUpdated(update))
    if machine.state is RunState.STOPPING:
        machine.handle(GroupStopped())
    return result_of(machine, places=PLACES, timings={"ray": 0.5, "total": 3.0})


def ended(state: RunState, error_type: str | None = None, kind: FailureKind = FailureKind.USER) -> RunResult:
    failure = make_failure("worker/1", kind, error_type=error_type or "")
    error = error_of(RootCause(failure=failure), attempt=0) if error_type else None
    return RunResult(
        run="r",
        state=state,
        strategy="one_device",
        keras="3",
        attempts=1,
        steps=4,
        storage="/runs/r",
        error=error,
    )


FINISHED = GroupUpdate(
    statuses=(
        make_status("worker/0", TaskState.FINISHED, step=8, metrics={"loss": 0.25}, checkpoint="/runs/r/c"),
        make_status("worker/1", TaskState.FINISHED, step=8, notes=("from the task",)),
    )
)


def test_failures_of_all_ranks_are_told_the_first_cause_first() -> None:
    def failed(name: str, kind: FailureKind = FailureKind.USER, **fields: object) -> TaskStatus:
        return make_status(name, TaskState.FAILED, failure=make_failure(name, kind, **fields))

    machine = RunMachine(make_plan(workers=4))
    early = (failed("worker/1", FailureKind.COLLATERAL, at_s=1.0), failed("worker/2", at_s=2.0))
    machine.handle(GroupUpdated(GroupUpdate(statuses=early)))
    # What the others say as they are stopped: one has raised by itself, one was killed.
    late = (failed("worker/0", message="bad\nlabel", at_s=3.0), failed("worker/3", FailureKind.LOST))
    machine.handle(GroupStopped(statuses=late))
    error = result_of(machine, places=PLACES, timings={}).error
    assert [str(one.task) for one in error.failures] == ["worker/2", "worker/0"]
    assert error.as_dict()["failures"][0] == {
        "task": "worker/2",
        "type": "ValueError",
        "message": "bad batch",
    }
    assert error.as_exception().__notes__ == [  # type: ignore[attr-defined]
        "worker/0 failed too: ValueError: bad"
    ]


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
        "value": None,
        "best": None,
        "evaluation": None,
        "progress": {
            "epoch": None,
            "num_epochs": None,
            "num_steps": None,
            "steps_per_s": None,
            "eta_s": None,
        },
        "checkpoint": "/runs/r/c",
        "storage": "/runs/r",
        "tasks": [
            {
                "task": f"worker/{index}",
                "state": "FINISHED",
                "steps": 8,
                "steps_per_s": None,
                "lag_steps": 0,
                "step_s": None,
                "input_wait": None,
                "collective_wait": None,
                "peak_memory_bytes": None,
                "incarnation": 0,
                "host": f"10.0.0.{index + 1}",
                "pid": 100 + index,
                "address": f"10.0.0.{index + 1}:3333",
            }
            for index in range(2)
        ],
        "error": None,
        "stragglers": [],
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
        "steps_per_s": None,
        "lag_steps": None,
        "step_s": None,
        "input_wait": None,
        "collective_wait": None,
        "peak_memory_bytes": None,
        "incarnation": 0,
        "host": None,
        "pid": None,
        "address": None,
    }
    assert result.state is RunState.STARTING


def returned(task: str, value: object, state: TaskState = TaskState.FINISHED) -> GroupUpdate:
    return GroupUpdate(statuses=(make_status(task, state, value=value),))


def test_value_is_the_chiefs_once_the_run_has_succeeded() -> None:
    assert result_after(returned("worker/0", {"$tuple": [1]})).value is None
    result = result_after(returned("worker/1", 2), returned("worker/0", {"$tuple": [1]}))
    assert result.value == (1,)
    assert result.as_dict()["value"] == {"$tuple": [1]}


def test_value_of_an_attempt_that_was_lost_is_none_of_the_run() -> None:
    machine = RunMachine(make_plan())
    for update in (
        returned("worker/0", "of the first"),
        GroupUpdate(
            statuses=(
                make_status("worker/1", TaskState.FAILED, failure=make_failure("worker/1", FailureKind.LOST)),
            )
        ),
    ):
        machine.handle(GroupUpdated(update))
    machine.handle(GroupStopped())
    assert machine.attempt.number == 1
    finished = (make_status("worker/0", TaskState.FINISHED, value="of the second"), *FINISHED.statuses[1:])
    machine.handle(GroupUpdated(GroupUpdate(statuses=finished)))
    machine.handle(GroupStopped())
    assert result_of(machine, places=PLACES, timings={}).value == "of the second"


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
    back = make_status("worker/1", incarnation=1, pid=999)
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
        "exit_code": 1,
        "failures": [{"task": "worker/1", "type": "ValueError", "message": "bad batch"}],
    }
    assert result.traceback == "Traceback: line 7"
    assert "Traceback" not in json.dumps(result.as_dict())


@pytest.mark.parametrize(("state", "exit_code"), [("SUCCEEDED", 0), ("STARTING", 0), ("CANCELLED", 130)])
def test_exit_code_follows_the_state_where_nothing_failed(state: str, exit_code: int) -> None:
    assert ended(RunState(state)).exit_code == exit_code


BY_KIND = [
    ("ValueError", FailureKind.USER, errors.TaskFailedError),
    ("RayActorError", FailureKind.LOST, errors.TaskFailedError),
    ("RaydistErrors", FailureKind.STALLED, errors.TaskFailedError),
    ("UnsupportedError", FailureKind.MISTAKE, errors.UnsupportedError),
    ("MyDataError", FailureKind.MISTAKE, errors.MistakeError),
    ("StartTimeoutError", FailureKind.START, errors.StartTimeoutError),
    ("DeviceError", FailureKind.DEVICE, errors.DeviceError),
    ("StorageError", FailureKind.STORAGE, errors.StorageError),
    ("CheckpointError", FailureKind.STORAGE, errors.CheckpointError),
    # The user's own class, which only has the name of one of raydist's.
    ("DataError", FailureKind.USER, errors.TaskFailedError),
    ("StorageError", FailureKind.USER, errors.TaskFailedError),
    ("TrainingError", FailureKind.USER, errors.TaskFailedError),
    ("FinalError", FailureKind.USER, errors.TaskFailedError),
]


@pytest.mark.parametrize(("error_type", "kind", "error_class"), BY_KIND)
def test_the_kind_of_failure_decides_what_is_raised_also_from_a_record(
    error_type: str, kind: FailureKind, error_class: type[errors.RaydistError]
) -> None:
    error = ended(RunState.FAILED, error_type, kind).error
    for known in (error, from_plain(json.loads(json.dumps(error.as_dict())), RunError)):
        raised = known.as_exception()
        assert (type(raised), raised.task, raised.attempt) == (error_class, "worker/1", 0)
        assert known.exit_code == error_class.exit_code


def test_users_exception_with_a_name_of_raydists_keeps_its_traceback() -> None:
    failure = make_failure("worker/1", error_type="DataError", traceback="Traceback: line 7")
    error = error_of(RootCause(failure=failure), attempt=0)
    assert (error.type, error.exit_code, error.traceback) == ("DataError", 1, "Traceback: line 7")


def test_error_of_an_older_record_is_known_by_its_name() -> None:
    stored = {"type": "StorageError", "message": "gone", "task": None, "attempt": None, "log": None}
    assert from_plain(stored, RunError).exit_code == 4


def test_error_without_a_task_survives_the_record() -> None:
    for error in (errors.TrainingError("why"), errors.ClusterError("why"), KeyError("why")):
        told = RunError.from_exception(error, attempt=None)
        assert from_plain(told.as_dict(), RunError).raised_as is told.raised_as


def test_succeeded_run_raises_nothing() -> None:
    ended(RunState.SUCCEEDED).raise_for_state()


def test_cancelled_run_raises() -> None:
    machine = RunMachine(make_plan())
    for event in (CancelRequested(), GroupStopped()):
        machine.handle(event)
    with pytest.raises(errors.RunCancelledError, match="run r was cancelled at step 0") as caught:
        result_of(machine, places=PLACES, timings={}).raise_for_state()
    assert caught.value.exit_code == 130


def test_time_that_is_left_is_that_of_this_attempts_steps_alone() -> None:
    # It began at step 900, by a checkpoint of the program's own: nothing was restored by raydist.
    timed = {"first_step": 901, "first_step_at_s": 100.0, "at_s": 149.0}
    chief = make_status("worker/0", TaskState.RUNNING, step=950, num_steps=1000, **timed)
    result = result_after(GroupUpdate(statuses=(chief,)))
    assert result.progress.eta_s == 50.0
