from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RuntimeEnvSetupError

from raydist.errors import ClusterError
from raydist.outcome.status import FailureKind
from raydist.runtime.cluster.reachability import Loss
from raydist.runtime.group.ray_failures import lost_task, raise_if_host_cannot, unreachable_task
from raydist.runtime.task.greeting import Hello
from raydist.spec.tasks import TaskId

WORKER = TaskId.parse("worker/1")
HELLO = Hello(
    task=WORKER, address="10.0.0.2:9", pid=153, host="10.0.0.2", node_id="n", scratch_path=Path("/tmp/x")
)

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


def test_killed_agent_is_told_in_a_sentence() -> None:
    failure = lost_task(WORKER, RayActorError(error_msg=_SIGKILL), hello=HELLO)
    assert (failure.task, failure.kind) == (WORKER, FailureKind.LOST)
    assert failure.message == (
        "its agent 153 on 10.0.0.2 died: Worker unexpectedly exits with a connection error code 2. End of "
        "file. Common causes: the kernel's OOM killer, ray stop --force, a crash such as SIGSEGV"
    )


def test_agent_that_ray_cannot_reach_is_told_in_rays_words() -> None:
    error = ActorUnavailableError("RPC error: Socket closed", actor_id=None)
    assert "RPC error: Socket closed" in lost_task(WORKER, error).message


def test_agent_that_ray_killed_for_memory_is_lost() -> None:
    failure = lost_task(WORKER, OutOfMemoryError(_MONITOR), hello=HELLO, peak=3 << 29)
    assert (failure.error_type, failure.is_out_of_memory) == ("OutOfMemoryError", True)
    assert failure.peak_memory_bytes == 3 << 29
    assert failure.message == (
        "its agent 153 on 10.0.0.2 was killed by Ray's memory monitor: 7.60GB of 8.00GB on its host were "
        "used (take smaller batches, fewer tasks per host or hosts with more memory); the peak of its "
        "process was 1.5 GiB"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_MONITOR.replace("used / ", "/ ").replace(" limit", ""), "7.60GB of 8.00GB on its host were used ("),
        ("in other words", "the memory of its host ran out (take smaller"),
    ],
)
def test_ray_says_it_in_other_words(text: str, words: str) -> None:
    failure = lost_task(WORKER, OutOfMemoryError(text), hello=HELLO)
    assert f"was killed by Ray's memory monitor: {words}" in failure.message
    assert "peak" not in failure.message


def test_runtime_environment_that_fails_is_told_in_a_sentence() -> None:
    for text, words in (
        (_NO_VIRTUALENV, "it has no virtualenv; install that"),
        (_NO_PACKAGE, "ERROR: No mat"),
    ):
        with pytest.raises(ClusterError, match=f"of --runtime-env: {words}") as caught:
            raise_if_host_cannot(WORKER, RuntimeEnvSetupError(text))
        assert "Traceback" not in str(caught.value)


def test_host_that_cannot_be_used_is_told_in_our_words() -> None:
    failure = lost_task(WORKER, ClusterError("host 10.0.0.9 has tensorflow 9.9"))
    assert (failure.kind, failure.message) == (FailureKind.LOST, "host 10.0.0.9 has tensorflow 9.9")


# What Ray 2.60 says of an actor whose node it has given up, shortened.
_NODE_DIED = (
    "The actor died because its node has died. Node Id: 62ad\n"
    "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"
)


@pytest.mark.parametrize(("text", "is_doubted"), [(_NODE_DIED, True), (_SIGKILL, False), (_MONITOR, False)])
def test_host_is_doubted_where_more_than_a_process_died(text: str, is_doubted: bool) -> None:
    failure = lost_task(WORKER, RayActorError(error_msg=text), hello=HELLO)
    assert failure.is_host_in_doubt is is_doubted


@pytest.mark.parametrize("loss", Loss)
def test_host_that_does_not_answer_is_doubted(loss: Loss) -> None:
    assert unreachable_task(HELLO, loss).is_host_in_doubt is (loss is Loss.HOST)
