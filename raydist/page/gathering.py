"""Everything that storage keeps of a run, as the plain values that its page shows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydist.errors import StorageError
from raydist.metrics.curves import series_of
from raydist.metrics.reading import read_scopes
from raydist.outcome.codec import as_plain
from raydist.outcome.status import RunState, Scope
from raydist.page.curves import attempt_starts, later_trainings, pack_curves, with_step_times, workers
from raydist.page.failures import failures_of, with_log_ends
from raydist.page.timeline import timeline
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_record import decode_record, read_record
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import read_events

MAX_POINTS = 1_000_000
# Nobody tells more lines of a chart apart, and each task has files of its own.
MAX_TASKS = 64

_OVER = tuple(state.value for state in RunState if state.is_terminal)


@dataclass
class Problems:
    """What could not be read, as sentences."""

    sentences: list[str] = field(default_factory=list)

    def add(self, error: StorageError) -> None:
        if str(error) not in self.sentences:
            self.sentences.append(str(error))


def gather_facts(storage: RunStorage, problems: Problems, *, now_s: float) -> dict[str, Any]:
    """Returns all but the curves. What is damaged is left out, and added to `problems`.

    Raises:
      MistakeError: There is no such run.
      StorageError: Storage cannot be read.
    """
    events = read_events(storage, on_damage=problems.add)
    record = _record(storage, problems, events)
    is_over = record["state"] in _OVER
    return {
        "run": storage.run,
        "record": record,
        "made_at_s": now_s,
        "is_over": is_over,
        "timeline": timeline(
            events,
            tasks={task["task"]: str(task["state"]) for task in record["tasks"]},
            begun_s=record["created_at_s"],
            # Of a run whose driver died without a word, nothing is known since its last record.
            now_s=record["updated_at_s"] or now_s,
        ),
        "checkpoints": [one.facts() for one in reversed(CheckpointStore(storage).committed())],
        "trainings": later_trainings(events),
        "failures": with_log_ends(
            failures_of(events, notes=record["notes"], error=record["error"]),
            storage,
            on_problem=problems.add,
        ),
    }


def gather_curves(
    storage: RunStorage,
    problems: Problems,
    record: Mapping[str, Any],
    *,
    num_points: int = MAX_POINTS,
    scopes: Collection[Scope] = tuple(Scope),
) -> dict[str, Any]:
    """Returns the curves, packed, and what they say of each worker; as `gather_facts` does.

    Of a run with many tasks only those of some: of the chief, the evaluator and stragglers first.

    Args:
      record: The run's, as `gather_facts` returns it.
    """
    stragglers, num_left_out = {one["task"] for one in record["stragglers"]}, 0

    def choose(tasks: Collection[TaskId]) -> Collection[TaskId]:
        nonlocal num_left_out
        num_left_out = max(0, len(tasks) - MAX_TASKS)
        return _by_interest(tasks, stragglers)[:MAX_TASKS]

    rows = read_scopes(storage, scopes=scopes, choose=choose, on_damage=problems.add)
    series = [one for scope, table in rows.items() for one in series_of(table, scope=scope)]
    series = with_step_times(series)
    return {
        **pack_curves(series, num_points=num_points),
        "attempts": attempt_starts(series),
        "workers": workers(series, known_slow=_slow_tasks(record) if num_left_out else None),
        "tasks_left_out": num_left_out,
    }


def _slow_tasks(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns how many times slower than the median of all tasks the run's stragglers are."""
    told = (one for one in record["stragglers"] if not one.get("is_over") and one["cause"] != "network")
    return {one["task"]: one["times_slower"] for one in told}


def _by_interest(tasks: Collection[TaskId], stragglers: Collection[str]) -> list[TaskId]:
    chief = chief_of([task.task_type for task in tasks])

    def rank(task: TaskId) -> tuple[Any, ...]:
        is_of_run = task == chief or task.task_type is TaskType.EVALUATOR
        return not is_of_run, str(task) not in stragglers, task.index, task.task_type.value

    return sorted(tasks, key=rank)


def _record(storage: RunStorage, problems: Problems, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns run.json; of a damaged one the fields that are whole, and the plan from the events."""
    try:
        # Without the value, which may be larger than all the rest, and is not shown.
        record: dict[str, Any] = {**as_plain(read_record(storage)), "value": None}
        return record
    except StorageError as error:
        problems.add(error)
    content = storage.read_bytes(storage.record)
    needed = {"state": RunState.STARTING}  # without which nothing is a record
    record = {**as_plain(decode_record(json.dumps(needed).encode(), storage)), "state": None}
    try:
        stored = json.loads(content)
    except (ValueError, RecursionError):
        stored = None
    for key, value in stored.items() if isinstance(stored, dict) else ():
        with contextlib.suppress(StorageError):
            alone = json.dumps({**needed, key: value}).encode()
            record[key] = as_plain(decode_record(alone, storage)).get(key)
    if not record["plan"]:
        record["plan"] = next((event for event in events if event.get("event") == "planned"), {})
    return record
