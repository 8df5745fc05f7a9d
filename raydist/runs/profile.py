"""A profile of some steps of a task of a live run."""

from __future__ import annotations

import functools
import signal
import time

from raydist.errors import ClusterError, MistakeError, RaydistError, StorageError
from raydist.outcome.result import TaskRecord
from raydist.runs.attached import trusted_address
from raydist.runtime.cluster.signals import signal_task
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.storage import profile_mail
from raydist.storage.profile_mail import ProfileAnswer, ProfileRequest
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage

_POLL_S = 0.5
_LOOK_AT_RUN_S = 5.0


def profile_task(
    storage: RunStorage, task: TaskId | None, *, steps: int, timeout_s: float, address: str | None = None
) -> tuple[TaskId, ProfileAnswer]:
    """Has a task profile its next steps; returns which task it was and what the stored profile shows.

    Args:
      task: Which one; the chief when it is None.
      steps: How many steps, at least: several that are packed into one call are profiled together.
      address: The Ray to join for a task on another host; the one that the user submitted to when omitted.

    Raises:
      MistakeError: The run has ended or ends before the profile is complete, has no such task, or one that
        takes no steps.
      ClusterError: The task cannot be reached, is being profiled already, or takes no step in time.
    """
    record = read_record(storage)
    record.check_is_live("can be profiled")
    entry = record.entry_of(task or chief_of(entry.task.task_type for entry in record.tasks))
    check_has_steps(entry.task, record.strategy)
    if entry.pid is None or entry.state.is_terminal:
        raise ClusterError(f"{entry.task} of run {record.run} has no process now; ask again once it has")
    request = ProfileRequest(steps=steps, timeout_s=timeout_s)
    name = profile_mail.write_request(storage, entry.task, request)
    try:
        address_of = functools.partial(trusted_address, storage, address, told=record.spec.get("address"))
        send = functools.partial(signal_task, entry.pid, signal.SIGUSR2, run=storage.run, task=entry.task)
        send(host=entry.host or "", address_of=address_of)
        answer = _wait(storage, entry, name, request)
    finally:
        profile_mail.delete_mail(storage, entry.task, name)
    if answer.error is not None:
        raise ClusterError(f"{entry.task} of run {record.run} {answer.error}")
    return entry.task, answer


def check_has_steps(task: TaskId, strategy: str) -> None:
    """Raises MistakeError for a task that takes no training steps of its own."""
    if strategy == Strategy.PARAMETER_SERVER.value and task.task_type is not TaskType.CHIEF:
        raise MistakeError(
            f"{task} cannot be profiled: under parameter_server the coordinator in chief/0 counts the steps, "
            "and the other tasks only serve it; profile chief/0"
        )
    if task.task_type not in (TaskType.CHIEF, TaskType.WORKER):
        raise MistakeError(f"{task} cannot be profiled: it takes no training steps; profile a worker")


def _wait(storage: RunStorage, entry: TaskRecord, name: str, request: ProfileRequest) -> ProfileAnswer:
    begun_s = looked_s = time.monotonic()
    while True:
        time.sleep(_POLL_S)
        if (answer := profile_mail.read_answer(storage, entry.task, name)) is not None:
            return answer
        now_s = time.monotonic()
        if now_s - begun_s > request.timeout_s:
            raise ClusterError(
                f"{entry.task} of run {storage.run} did not complete {request.steps} steps within "
                f"{request.timeout_s:g} s; `{storage.command('stacks')} --task {entry.task}` shows where it "
                "is. If it is training, ask for fewer --steps or give a longer --timeout; a loop of your own "
                "has to call ctx.report for its steps to be counted"
            )
        if now_s - looked_s >= _LOOK_AT_RUN_S:
            looked_s = now_s
            if (ended := _end_of(storage, entry)) is not None:
                # The task may have answered just before.
                answer = profile_mail.read_answer(storage, entry.task, name)
                if answer is None:
                    raise ended
                return answer


def _end_of(storage: RunStorage, entry: TaskRecord) -> RaydistError | None:
    """Returns why the task's process will not answer any more; None while it may."""
    try:
        record = read_record(storage)
    except StorageError:
        return None  # a record that is being replaced; whether the storage is there, the answer tells
    if record.state.is_terminal:
        return MistakeError(
            f"run {storage.run} ended before {entry.task} was profiled: {record.state.value} after "
            f"{record.steps} steps"
        )
    if {one.task: one.pid for one in record.tasks}.get(entry.task) != entry.pid:
        return ClusterError(
            f"the process of {entry.task} of run {storage.run} ended before it was profiled; ask again once "
            "the task has another one"
        )
    return None
