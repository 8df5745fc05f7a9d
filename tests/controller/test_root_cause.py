from __future__ import annotations

from typing import Any

import pytest

from raydist.controller.attempt import Attempt
from raydist.controller.root_cause import find_root_cause, kind_of
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import FailureKind, TaskFailure, TaskState
from tests.support.fakes import attempt_of, make_failure, make_status, task

USER, LOST, COLLATERAL = FailureKind.USER, FailureKind.LOST, FailureKind.COLLATERAL

# What TensorFlow 2.21's coordinator raised when a ps was killed, and for an index out of range in a closure.
_REMOTE = "Additional GRPC error information from remote target /job:"
_PS_GONE = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4411: Failed to connect to "
    f"remote host: Connection refused\n{_REMOTE}ps/replica:0/task:0 while calling /tensorflow.eager:"
)
_BAD_INDEX = (
    f"Graph execution error: indices = 10100 is not in [0, 3)\n{_REMOTE}worker/replica:0/task:0 while"
)
_HANDLE_GONE = f"Unable to find the relevant tensor remote_handle: Op ID: 7\n{_REMOTE}ps/replica:0/task:0"
_WRAPPED = f"Input has an error, the original exception is {{}}, error message is {_REMOTE}ps/replica:0."


def attempt_with(*failures: TaskFailure, num_workers: int = 3) -> Attempt:
    statuses = (
        make_status(str(failure.task), TaskState.FAILED, failure=failure, step=failure.step)
        for failure in failures
    )
    return attempt_of((task(f"worker/{index}") for index in range(num_workers)), *statuses)


@pytest.mark.parametrize(
    ("failures", "root"),
    [
        pytest.param(
            [make_failure("worker/0", COLLATERAL, at_s=1), make_failure("worker/1", USER, at_s=2)],
            "worker/1",
            id="user-beats-earlier-collateral",
        ),
        pytest.param(
            [make_failure("worker/0", COLLATERAL, at_s=1), make_failure("worker/2", LOST, at_s=2)],
            "worker/2",
            id="lost-beats-earlier-collateral",
        ),
        pytest.param(
            [make_failure("worker/0", LOST, at_s=1), make_failure("worker/1", USER, at_s=2)],
            "worker/1",
            id="user-beats-lost-of-the-same-moment",
        ),
        pytest.param(
            [make_failure("worker/0", USER, at_s=2), make_failure("worker/1", USER, at_s=1)],
            "worker/1",
            id="earlier-of-two-user-exceptions",
        ),
        pytest.param(
            [make_failure("worker/1", USER), make_failure("worker/0", USER)],
            "worker/0",
            id="lower-task-of-two-at-the-same-time",
        ),
        pytest.param(
            [
                make_failure("worker/0", USER, at_s=1),
                make_failure("worker/1", USER, at_s=2, wants_retry=False),
            ],
            "worker/1",
            id="final-error-before-others",
        ),
        pytest.param(
            [
                make_failure("worker/0", USER, at_s=1, message="Collective ops is aborted by: recvmsg"),
                make_failure("worker/1", USER, at_s=2),
            ],
            "worker/1",
            id="text-shows-the-consequence",
        ),
        pytest.param(
            [make_failure("worker/0", COLLATERAL, at_s=2), make_failure("worker/1", COLLATERAL, at_s=1)],
            "worker/1",
            id="only-collateral",
        ),
    ],
)
def test_first_failure_is_found_among_those_it_caused(failures: list[TaskFailure], root: str) -> None:
    assert find_root_cause(attempt_with(*failures)).failure.task == task(root)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"message": "{{…}} Collective ops is aborted by: recvmsg:Connection reset by peer"}, COLLATERAL),
        ({"message": "[type.googleapis.com/tensorflow.CoordinationServiceError='']"}, COLLATERAL),
        ({"message": "tasks are unhealthy (stopped sending heartbeats)"}, COLLATERAL),
        ({"message": "Error reported from /job:worker/task:1: ValueError"}, COLLATERAL),
        ({"error_type": "UnavailableError", "message": "Socket closed"}, COLLATERAL),
        ({"error_type": "InternalError", "message": '{grpc_message:"Unable to parse request"}'}, COLLATERAL),
        ({"error_type": "InternalError", "message": "Unable to parse request"}, USER),
        ({"error_type": "UnavailableError", "message": "recvmsg:Connection reset by peer"}, COLLATERAL),
        ({"traceback": "UnavailableError: Collective ops is aborted by: x\n…\nValueError"}, COLLATERAL),
        ({"error_type": "ConnectionResetError", "message": "[Errno 104] Connection reset by peer"}, USER),
        ({"error_type": "ConnectionRefusedError", "message": "[Errno 111] Connection refused"}, USER),
        ({"error_type": "UnavailableError", "message": _PS_GONE}, COLLATERAL),
        ({"error_type": "PSUnavailableError", "message": _PS_GONE}, COLLATERAL),
        ({"error_type": "AbortedError", "message": f"RecvTensor {_REMOTE}ps/replica:0"}, COLLATERAL),
        ({"error_type": "CancelledError", "message": f"RPC cancelled {_REMOTE}worker/replica:0"}, COLLATERAL),
        ({"error_type": "InternalError", "message": "Connection refused"}, COLLATERAL),
        ({"error_type": "InvalidArgumentError", "message": _HANDLE_GONE}, COLLATERAL),
        ({"error_type": "InvalidArgumentError", "message": _BAD_INDEX}, USER),
        ({"error_type": "InternalError", "message": f"cuDNN failed {_REMOTE}worker/replica:0"}, USER),
        ({"error_type": "ClosureInputError", "message": _WRAPPED.format("UnavailableError()")}, COLLATERAL),
        ({"error_type": "ClosureInputError", "message": _WRAPPED.format("InvalidArgumentError()")}, USER),
        ({"error_type": "ValueError", "message": _WRAPPED.format("UnavailableError()")}, USER),
        ({"message": "bad batch"}, USER),
        ({"message": "Collective ops is aborted by: recvmsg", "wants_retry": False}, USER),
        ({"message": "Collective ops is aborted by: recvmsg", "wants_retry": True}, COLLATERAL),
        ({"kind": FailureKind.STORAGE, "message": "Socket closed"}, FailureKind.STORAGE),
        ({"error_type": "DeadlineExceededError", "message": "Barrier timed out. Id: x"}, FailureKind.START),
    ],
)
def test_kind_is_corrected_by_what_tensorflow_says(fields: dict[str, Any], kind: FailureKind) -> None:
    failure = make_failure("worker/0", fields.pop("kind", USER), **fields)
    assert kind_of(failure) is kind


def test_program_whose_workers_reduce_different_shapes_is_the_first_cause() -> None:
    mismatch = (
        "Collective ops is aborted by: Shape mismatch in the collective instance 113. Op at device /job:"
    )
    first = make_failure("worker/1", error_type="InvalidArgumentError", message=mismatch, at_s=2)
    cause = find_root_cause(attempt_with(make_failure("worker/0", COLLATERAL, at_s=1), first))
    assert (str(cause.failure.task), cause.failure.kind) == ("worker/1", USER)


def test_sentence_names_the_first_and_those_it_stopped() -> None:
    cause = find_root_cause(
        attempt_with(make_failure("worker/0", COLLATERAL), make_failure("worker/1"), num_workers=2)
    )
    assert cause.sentence(attempt=0) == (
        "worker/1 failed first (attempt 0): ValueError: bad batch; also stopped: worker/0"
    )


def test_sentence_of_a_single_task_names_no_others() -> None:
    cause = find_root_cause(attempt_with(make_failure("worker/0"), num_workers=1))
    assert cause.sentence(attempt=2) == "worker/0 failed (attempt 2): ValueError: bad batch"


def test_sentence_of_many_tasks_is_cut_short() -> None:
    cause = find_root_cause(attempt_with(make_failure("worker/0"), num_workers=100))
    assert cause.sentence(attempt=0).endswith("worker/7, worker/8 and 91 more")


def test_mistake_is_told_in_its_own_words() -> None:
    failure = make_failure("worker/0", FailureKind.MISTAKE, message="EMA cannot work; turn it off")
    assert find_root_cause(attempt_with(failure)).sentence(attempt=0) == "EMA cannot work; turn it off"


def test_barrier_timeout_names_the_task_that_did_not_come() -> None:
    text = (
        "Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::1. Number of tasks at barrier: 1/2. "
        "Some timed out task names:\n/job:worker/replica:0/task:1\n"
    )
    waiting = make_failure("worker/0", USER, error_type="DeadlineExceededError", message=text, traceback="…")
    attempt = attempt_with(waiting, num_workers=2)
    attempt.take(GroupUpdate(statuses=(make_status("worker/1", TaskState.STARTING),)))
    failure = find_root_cause(attempt).failure
    assert (failure.task, failure.kind, failure.traceback) == (task("worker/1"), FailureKind.START, None)
    assert failure.message == (
        "not at TensorFlow's start-up barrier in time: worker/1 at 10.0.0.2:3333 (STARTING)"
    )


def test_task_that_was_taken_for_lost_may_still_say_why_it_failed_but_not_the_other_way_round() -> None:
    lost = make_status("worker/0", TaskState.FAILED, failure=make_failure("worker/0", LOST))
    raised = make_status("worker/0", TaskState.FAILED, failure=make_failure("worker/0", USER))
    for first, second in ((lost, raised), (raised, lost)):
        attempt = attempt_with()
        attempt.take(GroupUpdate(statuses=(first,)))
        attempt.take(GroupUpdate(statuses=(second,)))
        assert attempt.failures == (raised.failure,)


def test_task_that_finished_is_not_lost_when_its_process_goes_away() -> None:
    attempt = attempt_with()
    attempt.take(GroupUpdate(statuses=(make_status("worker/0", TaskState.FINISHED),)))
    lost = make_status("worker/0", TaskState.FAILED, failure=make_failure("worker/0", LOST))
    attempt.take(GroupUpdate(statuses=(lost,)))
    assert attempt.failures == ()


@pytest.mark.parametrize(("kind", "root"), [(COLLATERAL, "worker/2"), (USER, "worker/0")])
def test_task_that_is_being_replaced_explains_a_consequence_only(kind: FailureKind, root: str) -> None:
    attempt = attempt_with(make_failure("worker/2", LOST, at_s=1))
    attempt.await_replacement(attempt.failures[0])
    failure = make_failure("worker/0", kind, at_s=2)
    failed = make_status("worker/0", TaskState.FAILED, failure=failure)
    attempt.take(GroupUpdate(statuses=(failed,)))
    assert find_root_cause(attempt).failure.task == task(root)
