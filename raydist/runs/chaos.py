"""Disturbs a live run, for those who want to see it survive."""

from __future__ import annotations

import contextlib
import enum
import functools
import signal
import time
from dataclasses import dataclass

from raydist.errors import ClusterError
from raydist.outcome.status import RunState
from raydist.runs.attached import trusted_address
from raydist.runtime.cluster.signals import signal_task
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import RunRecord, read_record
from raydist.storage.run_storage import RunStorage, open_run

_POLL_S = 0.1


class Fault(enum.Enum):
    """What is done to a task."""

    KILL = "kill"  # SIGKILL: it dies without an error
    TERM = "term"  # SIGTERM, as a host sends it that is about to be taken away
    STOP = "stop"  # SIGSTOP: it hangs


_SIGNALS = {Fault.KILL: signal.SIGKILL, Fault.TERM: signal.SIGTERM, Fault.STOP: signal.SIGSTOP}


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What was done.

    Attributes:
      step: What the run had reached by then.
    """

    run: str
    task: TaskId
    fault: Fault
    pid: int
    host: str
    step: int


def disturb(
    run: str,
    task: TaskId,
    fault: Fault,
    *,
    storage: str,
    at_step: int = 0,
    for_s: float | None = None,
    address: str | None = None,
) -> Disturbance:
    """Waits until `run` has completed `at_step` steps, and does that to its task.

    Args:
      for_s: After how many seconds a stopped task continues; None leaves it stopped.
      address: The Ray cluster; the run's own when omitted, and asked only for tasks on other hosts.

    Raises:
      MistakeError: There is no such run or task, or the run has ended.
      ClusterError: The task's process cannot be reached.
    """
    opened = open_run(storage, run=run)
    record = _wait_for(opened, task, at_step=at_step)
    entry = record.entry_of(task)
    pid, host = entry.pid, entry.host or ""
    assert pid is not None
    address_of = functools.partial(trusted_address, opened, address, told=record.spec.get("address"))
    send = functools.partial(signal_task, pid, run=run, task=task, host=host, address_of=address_of)
    send(_SIGNALS[fault])
    if fault is Fault.STOP and for_s is not None:
        time.sleep(for_s)
        with contextlib.suppress(ClusterError):  # the run has replaced it by now
            send(signal.SIGCONT)
    return Disturbance(run=run, task=task, fault=fault, pid=pid, host=host, step=record.steps)


def _wait_for(storage: RunStorage, task: TaskId, *, at_step: int) -> RunRecord:
    """Returns the run's record once it is that far and the task has a process."""
    while True:
        record = read_record(storage)
        record.check_is_live("can be disturbed")
        if record.tasks or record.state is not RunState.STARTING:  # else it was just submitted
            entry = record.entry_of(task)
            if record.steps >= at_step and entry.pid is not None:
                return record
        time.sleep(_POLL_S)
