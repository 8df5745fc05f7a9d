"""The Python stacks of the tasks of a live run."""

from __future__ import annotations

import functools
import re
import signal
import time
from collections.abc import Mapping, Sequence

from raydist.errors import ClusterError
from raydist.outcome.result import TaskRecord
from raydist.runs.attached import trusted_address
from raydist.runtime.cluster.signals import signal_task
from raydist.spec.tasks import TaskId
from raydist.spec.text import as_submitted
from raydist.storage.logs import read_log
from raydist.storage.run_record import RunRecord, read_record
from raydist.storage.run_storage import RunStorage

_POLL_S = 0.3
_BEGIN = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
# The main thread comes last, and its outermost frame is the program of the fork server.
_END = re.compile(r'^  File "<string>", line 1 in <module>$', re.MULTILINE)
_FILE = re.compile(r'^  File "([^"]*)"', re.MULTILINE)
_OURS = re.compile(r"/raydist/|/(?:site|dist)-packages/ray/|/python3\.\d+/(?!(?:site|dist)-packages/)")


def dump_stacks(
    storage: RunStorage, tasks: Sequence[TaskId] = (), *, timeout_s: float, address: str | None = None
) -> Mapping[TaskId, str | None]:
    """Returns the stacks of all threads of tasks; None for one that did not show them in time.

    A task writes them to its log from a signal handler in C, so one that hangs in TensorFlow answers too.

    Args:
      tasks: Which ones; all that have a process where none is given.
      address: The Ray to join for tasks on other hosts; the one that the user submitted to when omitted.

    Raises:
      MistakeError: The run has ended, or has no such task.
      ClusterError: A task's process cannot be reached.
    """
    record = read_record(storage)
    record.check_is_live(f"has stacks. `{storage.command('logs')}` shows what its tasks printed")
    entries = _entries(record, tasks)
    attempt = record.attempts - 1
    before = {task: len(read_log(storage, task=task, attempt=attempt)) for task in entries}
    address_of = functools.partial(trusted_address, storage, address, told=record.spec.get("address"))
    send = functools.partial(signal_task, number=signal.SIGUSR1, run=storage.run, address_of=address_of)
    for task, entry in entries.items():
        assert entry.pid is not None
        send(entry.pid, task=task, host=entry.host or "")
    found: dict[TaskId, str | None] = dict.fromkeys(entries)
    deadline_s = time.monotonic() + timeout_s
    while None in found.values() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        for task in [task for task, text in found.items() if text is None]:
            found[task] = stacks_in(read_log(storage, task=task, attempt=attempt)[before[task] :])
    return found


def stacks_in(log: str) -> str | None:
    """Returns the first whole dump of all threads in a piece of a log; None without one.

    The main thread comes first, and the threads of raydist and Ray, which only wait, come last.
    """
    begin = _BEGIN.search(log)
    end = _END.search(log, begin.start()) if begin else None
    if begin is None or end is None:
        return None
    *others, main = log[begin.start() : end.end()].split("\n\n")
    return as_submitted("\n\n".join([main, *sorted(others, key=_is_ours)])) + "\n"


def _is_ours(thread: str) -> bool:
    """Whether a thread runs nothing but raydist, Ray and Python's own library."""
    return all(map(_OURS.search, _FILE.findall(thread)))


def _entries(record: RunRecord, tasks: Sequence[TaskId]) -> dict[TaskId, TaskRecord]:
    """Returns the records of the tasks that are asked for, each with a process."""
    asked = {task: record.entry_of(task) for task in tasks} or {entry.task: entry for entry in record.tasks}
    if missing := [task for task in tasks if asked[task].pid is None]:
        raise ClusterError(f"{missing[0]} of run {record.run} has no process yet; ask again once it has")
    living = {task: entry for task, entry in asked.items() if entry.pid and not entry.state.is_terminal}
    if not living:
        raise ClusterError(f"no task of run {record.run} has a process now; ask again once it has")
    return living
