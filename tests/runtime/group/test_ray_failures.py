from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import (
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RuntimeEnvSetupError,
)

from raydist.errors import ClusterError
from raydist.runtime.cluster.reach import Loss
from raydist.runtime.group.ray_failures import lost_task, raise_if_host_cannot, unreachable_task
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


# What Ray 2.60 says of a process that its memory monitor killed, shortened.
_MONITOR = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, "
    "ID: 62ad) was 7.60GB used / 8.00GB limit (0.950000)\nOOM kill reason: Memory usage exceeded threshold\n"
    "Selected to kill: (Actor(58b9): job ID=01, task name=A.__init__, required resources={CPU: 1}, pid=153, "
    "actual memory used=5.29GB, worker ID=b846)\n]\n153\t0.29\tray::A.f\nRefer to the documentation"
)
_NO_VIRTUALENV = (
    "Failed to set up runtime environment.\n[Node 127.0.0.1] Traceback (most recent call last):\n"
    "    import virtualenv\nModuleNotFoundError: No module named 'virtualenv'\n"
)
_NO_PACKAGE = (
    "Failed to set up runtime environment.\nTraceback (most recent call last):\n"
    "ERROR: Could not find a version that satisfies the requirement nowhere\n"
    "ERROR: No matching distribution found for nowhere\n"
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
    failure = lost_task(WORKER, OutOfMemoryError(_MONITOR), pid=153, host="10.0.0.2", peak=3 << 29)
    assert (failure.error_type, failure.is_out_of_memory) == ("OutOfMemoryError", True)
    assert failure.peak_memory_bytes == 3 << 29
    assert failure.message == (
        "its process 153 on 10.0.0.2 was killed by Ray's memory monitor: 7.60GB of 8.00GB on its host were "
        "used, 5.29GB by this process (take smaller batches, fewer tasks per host or hosts with more "
        "memory); its peak was 1.5 GiB"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_MONITOR.replace("used / ", "/ ").replace(" limit", ""), "7.60GB of 8.00GB on its host were used, "),
        ("in other words", "the memory of its host ran out (take smaller"),
    ],
)
def test_ray_says_it_in_other_words(text: str, words: str) -> None:
    failure = lost_task(WORKER, OutOfMemoryError(text), pid=153, host="10.0.0.2")
    assert f"was killed by Ray's memory monitor: {words}" in failure.message
    assert "peak" not in failure.message


def test_process_that_the_kernel_killed_for_memory_is_told_with_its_peak() -> None:
    finding = Finding(how="was killed by SIGKILL, by the kernel's OOM killer", is_out_of_memory=True)
    hello = Hello(
        task=WORKER, address="10.0.0.2:9", pid=5, host="10.0.0.2", node_id="n", scratch_path=Path("/tmp/x")
    )
    for failure in (
        lost_task(WORKER, RayActorError(error_msg=_SIGKILL), pid=5, host="h", peak=1 << 30, finding=finding),
        unreachable_task(hello, Loss.PROCESS, peak=1 << 30, finding=finding),
    ):
        assert failure.is_out_of_memory
        assert failure.message.endswith("by the kernel's OOM killer; its peak was 1 GiB")
    other = lost_task(
        WORKER, RayActorError(error_msg=_SIGKILL), pid=5, host="h", peak=1, finding=Finding(how="was killed")
    )
    assert (other.is_out_of_memory, other.message) == (False, "its process 5 on h was killed")


def test_runtime_environment_that_fails_is_told_in_a_sentence() -> None:
    for text, words in (
        (_NO_VIRTUALENV, "it has no virtualenv; install that"),
        (_NO_PACKAGE, "ERROR: No mat"),
    ):
        with pytest.raises(ClusterError, match=f"of --runtime-env: {words}") as caught:
            raise_if_host_cannot(WORKER, RuntimeEnvSetupError(text))
        assert "Traceback" not in str(caught.value)


def test_host_that_cannot_be_used_is_told_in_our_words() -> None:
    failure = lost_task(WORKER, ClusterError("host 10.0.0.9 has tensorflow 9.9"), pid=None, host=None)
    assert (failure.kind, failure.message) == (FailureKind.LOST, "host 10.0.0.9 has tensorflow 9.9")


# What Ray 2.60 says of an actor whose node it has given up, shortened.
_NODE_DIED = (
    "The actor died because its node has died. Node Id: 62ad\n"
    "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"
)


@pytest.mark.parametrize(("text", "is_doubted"), [(_NODE_DIED, True), (_SIGKILL, False), (_MONITOR, False)])
def test_host_is_doubted_where_more_than_a_process_died(text: str, is_doubted: bool) -> None:
    failure = lost_task(WORKER, RayActorError(error_msg=text), pid=5, host="10.0.0.2")
    assert failure.is_host_in_doubt is is_doubted


@pytest.mark.parametrize("loss", Loss)
def test_host_that_does_not_answer_is_doubted(loss: Loss) -> None:
    hello = Hello(
        task=WORKER, address="10.0.0.2:9", pid=5, host="10.0.0.2", node_id="n", scratch_path=Path("/tmp/x")
    )
    assert unreachable_task(hello, loss).is_host_in_doubt is (loss is Loss.HOST)
