"""What calls to Ray end with: answers, and exceptions of ours in place of Ray's."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError, RuntimeEnvSetupError

from raydist.errors import ClusterError, RaydistError, StorageError
from raydist.outcome.status import FailureKind, TaskFailure
from raydist.runtime.cluster.reachability import Loss
from raydist.runtime.host.post_mortem import MORE_MEMORY
from raydist.runtime.task.greeting import Hello
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import AnyTask, TaskId

logger = logging.getLogger(__name__)

_Key = TypeVar("_Key", bound=AnyTask)

_IP_PATTERN = re.compile(r"\bip(?:=|: )([0-9A-Fa-f.:]+)")
_NOT_INSTALLED_PATTERN = re.compile(r"No module named '(raydist[.\w]*)'")
# What only Ray's own developers can use.
_NOISE_PATTERN = re.compile(r"^\s*(class_name|actor_id|namespace|name|pid|ip): |^The actor died unexpectedly")

_HOST_MEMORY = re.compile(r"Memory on the node .*? was ([\d.]+ ?\w*B)(?: used)? / ([\d.]+ ?\w*B)")
_NO_MODULE = re.compile(r"No module named '(\w+)'")
_ERROR_LINE = re.compile(r"\s*(?:ERROR: |[\w.]+(?:Error|Exception): )")
_MAX_SETUP_PROBLEM = 500

# Ray's page for every process that died without an error, as one sentence.
_PREAMBLE = re.compile(r"^The actor is dead because its worker process has died\. .*Worker exit detail: ")
_ADVICE = re.compile(r"Some common causes include: .*")
# What Ray says of an actor whose node it has given up, or was told to.
_NODE_DIED = re.compile(r"its node has died|the actor's node was ")
_SHORT_ADVICE = "Common causes: the kernel's OOM killer, ray stop --force, a crash such as SIGSEGV"


def lost_task(
    task: TaskId, error: BaseException, *, hello: Hello | None = None, peak: int | None = None
) -> TaskFailure:
    """Describes a task whose agent died, or that could not be used.

    Args:
      hello: What the task sent when it came up; None if it has not.
      peak: The most memory that its process had, in bytes, by its last status.
    """
    agent = "its agent" if hello is None else f"its agent {hello.pid} on {hello.host}"
    is_out_of_memory = isinstance(error, OutOfMemoryError)
    if isinstance(error, RaydistError):
        message = str(error)
    elif is_out_of_memory:
        message = f"{agent} was killed by Ray's memory monitor: {_shortage(str(error))} {MORE_MEMORY}"
        message += "" if peak is None else f"; the peak of its process was {write_bytes(peak)}"
    else:
        message = f"{agent} died: {describe_cause(error)}"
    return TaskFailure(
        task=task,
        kind=FailureKind.LOST,
        error_type=type(error).__name__,
        message=message,
        at_s=time.time(),
        is_out_of_memory=is_out_of_memory,
        peak_memory_bytes=peak,
        is_host_in_doubt=_NODE_DIED.search(str(error)) is not None,
    )


def unreachable_task(hello: Hello, loss: Loss, *, pid: int | None = None) -> TaskFailure:
    """Describes a process, or a host, that went away without Ray's knowing of it yet."""
    if loss is Loss.HOST:
        kind, what = "HostUnreachable", f"its host {hello.host} does not answer any more"
    else:
        process = f"its process {pid or hello.pid} on {hello.host}"
        kind, what = "ProcessGone", f"{process} died: nothing listens at {hello.address} any more"
    return TaskFailure(
        task=hello.task,
        kind=FailureKind.LOST,
        error_type=kind,
        message=what,
        at_s=time.time(),
        is_host_in_doubt=loss is Loss.HOST,
    )


def answers_in_time(calls: Mapping[Any, _Key], *, timeout_s: float) -> dict[_Key, Any]:
    """Waits for calls, and returns the answers of those that neither failed nor were late, by their tasks.

    Args:
      calls: Ray's references to the answers, each with its task.
    """
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s) if calls else ((), ())
    answers = {}
    for ref in ready:
        try:
            answers[calls[ref]] = ray.get(ref)
        except RayError as error:
            logger.debug("%s: %s", calls[ref], error)
    return answers


def _shortage(text: str) -> str:
    """Returns how much memory the host used, from Ray's page on a killed process."""
    host = _HOST_MEMORY.search(text)
    return f"{host[1]} of {host[2]} on its host were used" if host else "the memory of its host ran out"


def raise_if_host_cannot(task: AnyTask, error: BaseException) -> None:
    """Raises the ClusterError or StorageError that `hello` ended with; returns for a process that died.

    A host without raydist cannot even read the actor's class, which Ray reports as text only.
    """
    text = str(error)
    host = next(iter(_IP_PATTERN.findall(text)), "unknown")
    missing = _NOT_INSTALLED_PATTERN.search(text)
    cause = error.cause if isinstance(error, RayTaskError) else None
    if missing is not None:
        problem = f"host {host} cannot import {missing[1]}; install there the same raydist as on the driver"
    elif isinstance(cause, StorageError):
        raise StorageError(str(cause), task=str(task)) from error
    elif isinstance(cause, RaydistError):
        problem = f"host {host}: {cause}"
    elif isinstance(error, RayTaskError):
        problem = f"host {host} cannot start {task}: {cause}"
    elif isinstance(error, RuntimeEnvSetupError):
        problem = (
            f"{task} cannot be started: its host cannot set up the runtime environment of --runtime-env: "
            f"{_setup_problem(text)}"
        )
    elif isinstance(error, RayActorError) and error.actor_init_failed:
        problem = f"host {host} cannot start {task}: {text}"
    elif isinstance(error, (RayActorError, OutOfMemoryError)):
        return
    else:
        problem = f"{task} cannot be started: {text}"
    raise ClusterError(problem, task=str(task)) from error


def _setup_problem(text: str) -> str:
    """Returns the error in Ray's account of a failed set-up, which has whole tracebacks."""
    missing = _NO_MODULE.search(text)
    if missing is not None:  # what Ray itself needs there
        return f"it has no {missing[1]}; install that in the Python of its Ray"
    errors = [line.strip() for line in text.splitlines() if _ERROR_LINE.match(line)]
    return errors[-1] if errors else " ".join(text.split())[:_MAX_SETUP_PROBLEM]


def controller_error(error: BaseException) -> ClusterError:
    """Describes why a detached run's controller could not be started."""
    missing = _NOT_INSTALLED_PATTERN.search(str(error))
    if missing is not None:
        host = next(iter(_IP_PATTERN.findall(str(error))), "unknown")
        return ClusterError(
            f"host {host}, where the run's controller is to live, cannot import {missing[1]}; "
            "install there the same raydist as on the driver"
        )
    return ClusterError(f"the run's controller could not be started: {describe_cause(error)}")


def describe_cause(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if not _NOISE_PATTERN.match(line)]
    cause = " ".join(line for line in lines if line) or "Ray knows no cause; its host may be gone"
    return _ADVICE.sub(_SHORT_ADVICE, _PREAMBLE.sub("", cause))
