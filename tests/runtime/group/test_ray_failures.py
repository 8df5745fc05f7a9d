from __future__ import annotations

from pathlib import Path

from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError

from raydist.errors import ClusterError
from raydist.runtime.cluster.reach import Loss
from raydist.runtime.group.ray_failures import lost_task, unreachable_task
from raydist.runtime.host.post_mortem import Finding
from raydist.runtime.task.greeting import Hello
from raydist.spec import FailureKind, TaskId

WORKER = TaskId.parse("worker/1")

# What Ray 2.60 says of a process that was killed with SIGKILL.
_SIGKILL = (
    "The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: TaskActor\n\tactor_id: 1f2e\n\tpid: 7194\n\tnamespace: 08d6\n\tip: 10.0.0.2\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force "
    "was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error. If the "
    "process was killed by the kernel OOM killer, consider enabling resource isolation."
)


def test_killed_process_is_told_in_a_sentence() -> None:
    failure = lost_task(WORKER, RayActorError(error_msg=_SIGKILL), pid=7194, host="10.0.0.2")
    assert (failure.task, failure.kind) == (WORKER, FailureKind.LOST)
    assert failure.message == (
        "its process 7194 on 10.0.0.2 died: Worker unexpectedly exits with a connection error code 2. End of "
        "file. Common causes: the kernel's OOM killer, ray stop --force, a crash such as SIGSEGV"
    )


def test_what_the_host_knows_goes_before_what_ray_guesses() -> None:
    finding = Finding(how="was killed by SIGSEGV", log_end="Fatal Python error: Segmentation fault")
    for error in (RayActorError(error_msg=_SIGKILL), ActorUnavailableError("RPC: Socket closed", None)):
        failure = lost_task(WORKER, error, pid=7194, host="10.0.0.2", finding=finding)
        assert failure.message == "its process 7194 on 10.0.0.2 was killed by SIGSEGV"
        assert failure.log_end == finding.log_end


def test_what_ray_knows_goes_before_what_the_host_guesses() -> None:
    finding = Finding(how="was killed by SIGKILL", log_end="step 3")
    told = "Worker exits unexpectedly. Worker exits with an exit code 7."
    failure = lost_task(WORKER, RayActorError(error_msg=told), pid=5, host="10.0.0.2", finding=finding)
    assert (failure.message, failure.log_end) == (f"its process 5 on 10.0.0.2 died: {told}", "step 3")


def test_process_that_nobody_hears_of_any_more_is_told_by_its_host() -> None:
    hello = Hello(
        task=WORKER, address="10.0.0.2:9", pid=5, host="10.0.0.2", node_id="n", scratch_path=Path("/tmp/x")
    )
    finding = Finding(how="was killed by SIGKILL", log_end="step 3")
    failure = unreachable_task(hello, Loss.PROCESS, finding=finding)
    assert (failure.message, failure.log_end) == (
        "its process 5 on 10.0.0.2 was killed by SIGKILL",
        "step 3",
    )


def test_process_that_ray_cannot_reach_is_told_in_rays_words() -> None:
    error = ActorUnavailableError("RPC error: Socket closed", actor_id=None)
    assert "RPC error: Socket closed" in lost_task(WORKER, error, pid=None, host=None).message


def test_process_that_ray_killed_for_memory_is_lost() -> None:
    failure = lost_task(WORKER, OutOfMemoryError("used 7 of 8 GB"), pid=5, host="10.0.0.2")
    assert (failure.error_type, failure.message) == (
        "OutOfMemoryError",
        "its process 5 on 10.0.0.2 died: used 7 of 8 GB",
    )


def test_host_that_cannot_be_used_is_told_in_our_words() -> None:
    failure = lost_task(WORKER, ClusterError("host 10.0.0.9 has tensorflow 9.9"), pid=None, host=None)
    assert (failure.kind, failure.message) == (FailureKind.LOST, "host 10.0.0.9 has tensorflow 9.9")
