"""Why tasks failed, each with the end of its log, from the events and notes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raydist.errors import SpecError, StorageError
from raydist.spec.tasks import TaskId
from raydist.spec.text import as_submitted, without_sequences
from raydist.storage.logs import read_log
from raydist.storage.run_storage import RunStorage

# Of more failures than these only the last are shown, and of their logs the last lines.
MAX_SHOWN = 30
LOG_END_BYTES = 6000

_COLLATERAL = "COLLATERAL"


def failures_of(
    events: Sequence[Mapping[str, Any]], *, notes: Iterable[str], error: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Returns the failures, the oldest first; `is_cause` marks those that were no consequence of others.

    Args:
      notes: Of the run. What became known of a death later stands there.
      error: Why the run failed, from run.json; None unless it failed.
    """
    said = list(notes)
    found = [
        {
            "attempt": event.get("attempt"),
            "task": event.get("task"),
            "type": event.get("type"),
            "message": _explained(event, said),
            "step": event.get("step"),
            "at_s": event.get("at_s"),
            "is_cause": event.get("kind") != _COLLATERAL,
        }
        for event in events
        if event.get("event") == "task_failed"
    ]
    places = [(one["attempt"], one["task"]) for one in found]
    if error is not None and (error.get("attempt"), error.get("task")) not in places:
        found.append({**error, "step": None, "at_s": None, "is_cause": True})
    elif error is not None:
        for one in found:
            if (one["attempt"], one["task"]) == (error["attempt"], error["task"]):
                one["message"] = error["message"]
    return found


def with_log_ends(
    failures: Sequence[dict[str, Any]], storage: RunStorage, *, on_problem: Callable[[StorageError], object]
) -> list[dict[str, Any]]:
    """Returns the last failures with `log_end`, None where there is no log."""
    return [
        {**failure, "log_end": _log_end(failure, storage, on_problem) if failure["is_cause"] else None}
        for failure in failures[-MAX_SHOWN:]
    ]


def _explained(event: Mapping[str, Any], notes: Iterable[str]) -> str:
    task, attempt = event.get("task"), event.get("attempt")
    beginning = f"{task} failed first (attempt {attempt}): "
    told = next((note.removeprefix(beginning) for note in notes if note.startswith(beginning)), None)
    return str(event.get("message")) if told is None else told.removeprefix(f"{event.get('type')}: ")


def _log_end(
    failure: Mapping[str, Any], storage: RunStorage, on_problem: Callable[[StorageError], object]
) -> str | None:
    try:
        task = TaskId.parse(str(failure["task"]))
        end = read_log(storage, task=task, attempt=int(failure["attempt"]), tail_bytes=LOG_END_BYTES)
        return as_submitted(without_sequences(end)) or None
    except (SpecError, TypeError, ValueError, OverflowError):
        return None
    except StorageError as error:
        on_problem(error)
        return None
