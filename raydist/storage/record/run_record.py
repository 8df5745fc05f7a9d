"""run.json: what a run is and how far it is, readable from any shell while it goes on."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import MistakeError, StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from raydist.storage.plain_json import dump_plain_json
from raydist.storage.record.record_fields import RunRecord
from raydist.storage.record.typed_json import checked
from raydist.storage.run_storage import RunStorage

# The states after which nothing changes any more.
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

# Every key of run.json with its value before anything is known; `status --json` prints all but the
# last five. A writer may add keys.
_EMPTY_RECORD: Mapping[str, Any] = {
    "run": None,
    "state": None,
    "strategy": None,
    "keras": None,
    "attempts": 0,
    "steps": 0,
    "steps_repeated": 0,
    "metrics": {},
    "evaluation": None,  # {step, lag_steps, metrics} of the evaluator
    "checkpoint": None,
    "storage": None,
    "tasks": [],  # {task, host, pid, address, state, steps} of the last attempt
    "error": None,  # {type, message, task, attempt, log}
    "notes": [],
    "timings": {},
    "failures": [],  # what ended the attempts that --max-failures counts
    "spec": {},
    "plan": {},
    "created_at_s": None,  # Unix time, as is `updated_at_s`; both are set by RunRecordStore
    "updated_at_s": None,
}


class RunRecordStore:
    """Replaces one run's run.json; used by the run's controller alone.

    Attributes:
      written_state: State of the record that this store wrote last; None before the first one.
    """

    def __init__(self, storage: RunStorage, *, clock: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._hasty_storage = storage.hasty()
        self._clock = clock
        self._created_at_s: float | None = None
        self.written_state: str | None = None

    def replace(self, record: Mapping[str, Any]) -> None:
        """Writes `record` as the whole run.json, with secrets taken out.

        Keys that `record` leaves out get their empty value. The time of creation is that of the
        run's first record, also after a resume. The record of a run that has ended is tried for a while;
        while the run goes on, another one follows within a second.
        """
        now_s = self._clock()
        if self._created_at_s is None:
            self._created_at_s = self._stored_creation() or now_s
        times = {"created_at_s": self._created_at_s, "updated_at_s": now_s}
        defaults = {
            **_EMPTY_RECORD,
            "run": self._storage.run,
            "storage": self._storage.uri(self._storage.run),
        }
        text = dump_plain_json({**defaults, **record, **times}, indent=1)
        storage = self._storage if record.get("state") in ENDED else self._hasty_storage
        storage.write_text(self._storage.record, text)
        self.written_state = record.get("state")

    def exists(self) -> bool:
        return self._storage.exists(self._storage.record)

    def read(self) -> dict[str, Any]:
        """Returns the stored record; raises like `read_record`."""
        return read_record(self._storage)

    def _stored_creation(self) -> float | None:
        return self.read()["created_at_s"] if self.exists() else None


def read_record(storage: RunStorage) -> dict[str, Any]:
    """Returns a run's run.json, with every key present.

    Raises:
      MistakeError: There is no such run; the message gives the near names.
      StorageError: The record cannot be read, or is damaged: no JSON, or with a field of another type.
    """
    if not storage.exists(storage.record):
        raise MistakeError(_no_such_run(storage))
    return _decoded(storage.read_bytes(storage.record), storage)


def _decoded(content: bytes, storage: RunStorage) -> dict[str, Any]:
    """Returns the record with every key; each has its type, also inside of lists and objects."""
    try:
        record = json.loads(content)
        if not isinstance(record, dict):
            raise ValueError("it holds no JSON object")
        dump_plain_json(record).encode()  # fails for half a character, which no terminal takes
        known = {**_empty_record(storage), **record}
        whole: dict[str, Any] = checked(known, RunRecord, "")
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{storage.uri(storage.record)} is damaged: {error}; put back a copy of it, or give the run up "
            "and remove its folder"
        ) from error
    return whole


def _empty_record(storage: RunStorage) -> dict[str, Any]:
    return {**_EMPTY_RECORD, "run": storage.run, "storage": storage.uri(storage.run)}


def run_names(storage: Storage) -> list[str]:
    """Returns the names of the runs kept here, sorted."""
    return [name for name in storage.list_names("") if storage.exists(RunLayout(run=name).record)]


def list_runs(storage: Storage) -> list[dict[str, Any]]:
    """Returns the record of each run, the newest first.

    A run whose run.json is damaged is listed with state None and the reason as its `error`.
    """
    records = [_record_or_damage(storage, name) for name in run_names(storage)]
    return sorted(records, key=lambda record: record["created_at_s"] or 0.0, reverse=True)


def _record_or_damage(storage: Storage, name: str) -> dict[str, Any]:
    try:
        return read_record(RunStorage(storage, run=name))
    except StorageError as error:
        places = {"task": None, "attempt": None, "log": None}
        damage = {"type": "StorageError", "message": str(error), **places, "exit_code": error.exit_code}
        return {**_EMPTY_RECORD, "run": name, "storage": storage.uri(name), "error": damage}


def _no_such_run(storage: RunStorage) -> str:
    names = run_names(storage)
    near = difflib.get_close_matches(storage.run, names, n=3)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        hint = "`raydist list` shows the runs that are there"
    else:
        hint = "no runs are kept there; give their place with --storage"
    return f"no run named {storage.run!r} in {storage.uri()}; {hint}"
