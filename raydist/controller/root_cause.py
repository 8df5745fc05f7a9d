"""Why an attempt failed: which task failed first, which one the others wait for, or why it never started."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raydist.controller.attempt import Attempt
from raydist.errors import StartTimeoutError
from raydist.outcome.status import CodePlace, FailureKind, TaskFailure, TaskState
from raydist.planning.capacity import describe_amount
from raydist.planning.plan import Plan
from raydist.spec.tasks import TaskId, TaskType
from raydist.spec.text import listed

# TensorFlow's messages in a task whose peer failed; the error's class varies.
_ABORT_MARKERS: tuple[str, ...] = (
    "Collective ops is aborted by",
    "[type.googleapis.com/tensorflow.CoordinationServiceError",
    "Error reported from /job:",
    "stopped sending heartbeats",
    "Coordination service agent is already in error state",
)
_PEER_GONE = (
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
    "PSUnavailableError",
    "UnavailableError",
)
# A user's own download may raise these too, so they count only in an error of TensorFlow's.
_MARKERS_BY_ERROR: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (*_PEER_GONE, "InternalError", "UnknownError"),
        (
            "Connection refused",
            "Connection reset by peer",
            "Socket closed",
            "failed to connect to all addresses",
            # Seen once, as a chief's call reached a worker: what TensorFlow sent was no message.
            'grpc_message:"Unable to parse request"',
        ),
    ),
    # The other types have it as well where the user's own function failed in a worker.
    (_PEER_GONE, ("error information from remote target /job:",)),
    # A server that was replaced before anybody saw it go (cluster_coordinator.py, _is_ps_failure).
    (("InvalidArgumentError",), ("Unable to find the relevant tensor remote_handle",)),
)
# What the program itself did, which TensorFlow then reports to all tasks as it does a lost peer.
_PROGRAM_MARKERS = ("Shape mismatch in the collective instance",)
# The coordinator's ClosureInputError and ClosureAbortedError hold the error of the closure before.
_WRAPPERS = ("ClosureAbortedError", "ClosureInputError")
_WRAPPED_ERROR = re.compile(r"original exception is (\w+)\(")
_BARRIER_MARKER = "Barrier timed out"
_BARRIER_CULPRITS = re.compile(r"timed out task names:(.*)", re.DOTALL)
_TASK_NAME = re.compile(r"/job:(chief|worker|ps|evaluator)/replica:\d+/task:(\d+)")

# The train function's own exception explains the rest; a dead process explains what its peers saw.
_RANKS = {
    FailureKind.USER: 0,
    FailureKind.MISTAKE: 0,
    FailureKind.STORAGE: 0,
    FailureKind.DEVICE: 0,
    FailureKind.UNEQUAL: 0,
    FailureKind.LOST: 1,
    FailureKind.STALLED: 2,
    FailureKind.START: 3,
    FailureKind.SAVED: 4,
    FailureKind.COLLATERAL: 5,
}


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """Why an attempt ended.

    Attributes:
      failure: The first failure, with its kind corrected by what its text shows.
      collateral: The tasks that ended because of it.
    """

    failure: TaskFailure
    collateral: tuple[TaskId, ...] = ()

    def sentence(self, *, attempt: int) -> str:
        """Returns `worker/1 failed first (attempt 0): ValueError: …; also stopped: worker/0`.

        What another attempt would meet again is a sentence already.
        """
        failure = self.failure
        if failure.kind.is_incurable:
            return failure.message
        what = f"{failure.error_type}: {failure.message}"
        if not self.collateral:
            return f"{failure.task} failed (attempt {attempt}): {what}"
        also = listed(self.collateral)
        return f"{failure.task} failed first (attempt {attempt}): {what}; also stopped: {also}"


def find_root_cause(attempt: Attempt) -> RootCause:
    """Returns the root cause of an attempt in which at least one task failed."""
    failures = [_with_true_kind(failure, attempt) for failure in attempt.failures]
    if not any(map(is_decisive, failures)):
        # The death of a task that is about to be replaced may be what the others could not cope with.
        failures += attempt.absent.values()
    first = min(failures, key=lambda one: (_RANKS[one.kind], one.wants_retry is not False, one.at_s))
    return RootCause(failure=first, collateral=attempt.unfinished_besides(first.task))


def in_order(cause: RootCause, failures: Iterable[TaskFailure]) -> tuple[TaskFailure, ...]:
    """Returns the cause of an attempt's end, and how other tasks failed, those that explain more first.

    What TensorFlow raises in a task because of another's failure explains nothing.
    """
    own = (one for one in failures if kind_of(one) is not FailureKind.COLLATERAL)
    others = {one.task: one for one in own if one.task != cause.failure.task}
    ranked = sorted(others.values(), key=lambda one: (_RANKS[kind_of(one)], one.at_s))
    return (cause.failure, *ranked)


def is_decisive(failure: TaskFailure) -> bool:
    """Whether `failure` explains itself, so that further failures would add nothing."""
    return kind_of(failure) not in (FailureKind.COLLATERAL, FailureKind.START, FailureKind.SAVED)


def kind_of(failure: TaskFailure) -> FailureKind:
    """Returns the kind of a failure, also where a task took a consequence for an exception of its own."""
    is_final = failure.wants_retry is False  # regardless of its causes
    if is_final or failure.kind not in (FailureKind.USER, FailureKind.COLLATERAL):
        return failure.kind
    # The traceback too: a train function may catch TensorFlow's error and raise its own from it.
    text = f"{failure.message}\n{failure.traceback or ''}"
    if _BARRIER_MARKER in text:
        return FailureKind.START
    if any(marker in text for marker in _PROGRAM_MARKERS):
        return FailureKind.USER
    is_consequence = any(marker in text for marker in _markers_for(failure))
    return FailureKind.COLLATERAL if is_consequence else failure.kind


def _markers_for(failure: TaskFailure) -> tuple[str, ...]:
    wrapped = _WRAPPED_ERROR.search(failure.message) if failure.error_type in _WRAPPERS else None
    error_type = wrapped[1] if wrapped else failure.error_type
    by_error = (marker for types, found in _MARKERS_BY_ERROR if error_type in types for marker in found)
    return (*_ABORT_MARKERS, *by_error)


def _with_true_kind(failure: TaskFailure, attempt: Attempt) -> TaskFailure:
    kind = kind_of(failure)
    if kind is not FailureKind.START or failure.kind is FailureKind.START:
        return dataclasses.replace(failure, kind=kind)
    # TensorFlow's barrier fails in those that came to it, and names those that did not.
    missing = _tasks_missing_at_barrier(failure.message)
    named = ", ".join(map(attempt.describe, missing)) or failure.message
    return dataclasses.replace(
        failure,
        kind=kind,
        task=missing[0] if missing else failure.task,
        error_type=StartTimeoutError.__name__,
        message=f"not at TensorFlow's start-up barrier in time: {named}",
        traceback=None,
    )


def _tasks_missing_at_barrier(message: str) -> tuple[TaskId, ...]:
    match = _BARRIER_CULPRITS.search(message)
    names = _TASK_NAME.findall(match[1]) if match else []
    return tuple(TaskId(task_type=TaskType(task_type), index=int(index)) for task_type, index in names)


def standstill_cause(attempt: Attempt, *, chief: TaskId, stall_timeout_s: float) -> RootCause:
    """Returns the cause: the task that is in code of its own while the others wait, if there is one."""
    places = _known_places(attempt)
    busy = [task for task, place in places.items() if not place.is_waiting]
    task = busy[0] if busy else chief
    place = places.get(task)
    said = _describe(places, busy)
    failure = TaskFailure(
        task=task,
        kind=FailureKind.STALLED,
        error_type="Stalled",
        message=f"no task has made progress after step {attempt.step} for {stall_timeout_s:g} s "
        f"(--stall-timeout){said and f': {said}'}; the stacks of all tasks are at the end of their logs",
        traceback=None if place is None else f"{task} (most recent call last):\n{place.stack}",
        step=attempt.step,
    )
    return RootCause(failure=failure, collateral=attempt.unfinished_besides(task))


def _known_places(attempt: Attempt) -> dict[TaskId, CodePlace]:
    """Returns where the tasks are that run code of the user's."""
    statuses = (attempt.statuses[task] for task in attempt.needed if task in attempt.statuses)
    return {status.task: status.place for status in statuses if status.place and status.place.where}


def _describe(places: Mapping[TaskId, CodePlace], busy: Sequence[TaskId]) -> str:
    """Returns `worker/1 is in bad.py:53 (on_epoch_end), the others wait for it`, of what is known."""
    if not busy:
        return _by_place(places, list(places), "waits", "wait")
    said = _by_place(places, busy, "is", "are")
    if len(busy) == len(places):
        return said
    return f"{said}, the others wait for {'it' if len(busy) == 1 else 'them'}"


def _by_place(places: Mapping[TaskId, CodePlace], tasks: Sequence[TaskId], verb: str, plural: str) -> str:
    """Returns which of `tasks` are in which place, those in the same one together."""
    found: defaultdict[str | None, list[TaskId]] = defaultdict(list)
    for task in tasks:
        found[places[task].where].append(task)
    return ", ".join(
        f"{listed(there)} {verb if len(there) == 1 else plural} in {where}" for where, there in found.items()
    )


def unplaced_error(plan: Plan, attempt: Attempt) -> StartTimeoutError:
    """Returns the error for tasks that the cluster had no room for; names them and what they ask for."""
    needed = attempt.needed
    waiting = [task for task in needed if attempt.state_of(task) is TaskState.PENDING] or needed
    resources = [plan.resources_of(task) for task in waiting]
    asked = _sums(each.amounts for each in resources)
    total = _sums(host.amounts for host in plan.inventory.hosts)
    labels = sorted({f"{label}={wanted}" for each in resources for label, wanted in each.labels})
    where = f" on hosts with {', '.join(labels)}" if labels else ""
    return StartTimeoutError(
        f"no room for {listed(waiting)} within {plan.job.start_timeout:g} s (--start-timeout): "
        f"waited for {_amounts_text(asked)}{where}; {plan.inventory.source} had "
        f"{_amounts_text({name: total.get(name, 0.0) for name in asked})} in all. "
        "Free some, ask for less, or wait longer with --start-timeout",
        attempt=attempt.number,
    )


def unready_cause(plan: Plan, attempt: Attempt) -> RootCause:
    """Returns the cause for tasks that have a process but do not train yet; names their addresses."""
    missing = attempt.furthest_behind
    named = ", ".join(map(attempt.describe, missing))
    failure = TaskFailure(
        task=missing[0],
        kind=FailureKind.START,
        error_type=StartTimeoutError.__name__,
        message=f"not training within {plan.job.start_timeout:g} s (--start-timeout): {named}",
    )
    return RootCause(failure=failure, collateral=attempt.unfinished_besides(failure.task))


def _sums(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the sum of each resource; that of CPUs also where there are none."""
    sums = {"CPU": 0.0}
    for each in amounts:
        for name, amount in each.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _amounts_text(amounts: Mapping[str, float]) -> str:
    shown = [f"{amounts['CPU']:g} CPUs"]
    shown += [describe_amount(name, amount) for name, amount in amounts.items() if name != "CPU"]
    return " and ".join(shown)
