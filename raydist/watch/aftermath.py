"""What is done for a run whose driver has died: nothing of it stays on this host, and its record ends."""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path
from typing import Any

from raydist.errors import ClusterError
from raydist.outcome.result import RunError, RunResult, TaskRecord, command_for
from raydist.outcome.status import RunState, TaskState
from raydist.runtime.host.ray_session import end_session
from raydist.runtime.host.salvage import clear_here
from raydist.storage.run_record import RunRecord, RunRecordStore
from raydist.storage.run_storage import open_run
from raydist.storage.segments import EventWriter
from raydist.watch.watcher import DrivenRun

# Ray's core worker leaves with this, without a message (core_worker.cc, `QuickExit`).
_RAYS_EXIT_CODE = 1


def describe_death(code: int | None) -> str:
    """Returns how the driver died, as the beginning of a sentence.

    Args:
      code: Its exit code, minus the signal that killed it; None where it is not known.
    """
    if code is None:
        return "the process that drove the run died, as it does when Ray's raylet, agent or head process ends"
    if code < 0:
        return f"the process that drove the run was killed by {signal.Signals(-code).name}"
    if code == _RAYS_EXIT_CODE:
        return (
            "Ray died under the run: its raylet, agent or head process ended "
            "(`ray stop`, a kill, out of memory)"
        )
    return f"the process that drove the run ended with exit code {code}"


def settle(run: DrivenRun, *, how: str) -> RunResult | None:
    """Clears up on this host, writes the last record, and returns how the run ended.

    Returns None for a run that had no record of its own yet.

    Args:
      how: What `describe_death` returned.

    Raises:
      StorageError: The record cannot be read or written.
    """
    # Before the record: a run that is over may be resumed at once.
    clear_here(run.owner, storage_uri=run.storage, run=run.name)
    if run.session is not None:
        end_session(Path(run.session))
    storage = open_run(run.storage, run=run.name)
    store = RunRecordStore(storage)
    record = store.read() if store.exists() else None
    # Another one's is resumed, or has taken the name.
    if record is None or record.driver != dict(run.driver):
        return None
    if not record.state.is_terminal:
        record = _ended(record, how)
        store.replace(record)
        events = EventWriter.open(storage)
        events.append(_state_event(record))
        events.flush()
    return record.result()


def _ended(record: RunRecord, how: str) -> RunRecord:
    where = "continues from its last checkpoint" if record.checkpoint else "trains it from the beginning"
    error = ClusterError(f"{how}; `{command_for(record.storage, 'resume')}` {where}")
    return dataclasses.replace(
        record,
        state=RunState.FAILED,
        error=RunError.from_exception(error, attempt=record.attempts - 1),
        tasks=tuple(_stopped(task) for task in record.tasks),
    )


def _stopped(task: TaskRecord) -> TaskRecord:
    return task if task.state.is_terminal else dataclasses.replace(task, state=TaskState.STOPPED)


def _state_event(record: RunRecord) -> dict[str, Any]:
    """Returns what raydist.controller.journal has for the end of a run."""
    error = record.error and record.error.as_dict()
    facts = {"state": record.state.value, "error": error}
    return {"event": "state", "at_s": time.time(), "attempt": record.attempts - 1, **facts}
