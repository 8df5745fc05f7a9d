"""run.json: what a run is and how far it is, readable from any shell while it is running."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias, TypedDict

from raydist.errors import MistakeError, StorageError
from raydist.outcome.codec import as_plain, from_plain
from raydist.outcome.result import Pid, RunResult, TaskRecord
from raydist.outcome.status import AttemptEnd, RunState
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.tasks import TaskId
from raydist.spec.text import counted
from raydist.storage.limits import MAX_TIME_S, parse_json
from raydist.storage.provenance import CodeRecord, Environment, Versions
from raydist.storage.run_names import created_at_s, no_such_run, without_record
from raydist.storage.run_storage import RunStorage

if sys.version_info >= (3, 11):
    from typing import NotRequired
else:
    from typing_extensions import NotRequired

# Before a record is read again. A live run replaces it every few seconds, and when its state changes.
_PAUSES_S = (0.0, 0.1, 0.3)
# A record of more tasks is one line: with indentation json takes Python's own encoder, four times as long.
_MOST_INDENTED = 100


def _check_time(unix_s: float) -> None:
    if not 0 <= unix_s <= MAX_TIME_S:
        raise ValueError("write a Unix time in seconds")


Time: TypeAlias = Annotated[float, _check_time]


class Driver(TypedDict):
    """Which process drives the run; the last three for a detached one."""

    host: str
    pid: Pid
    start: int | None
    actor: NotRequired[str]
    address: NotRequired[str]
    id: NotRequired[str]


class EntryPointText(TypedDict):
    """What to run."""

    file: str | None
    module: str | None
    function: str | None


class SpecText(TypedDict, total=False):
    """What the run was started with; the other options are checked when a resume takes them over."""

    entry_point: EntryPointText
    study: str | None
    params: Mapping[str, Any]
    param_types: Mapping[str, tuple[tuple[str | int, ...], ...]]
    args: tuple[str, ...]
    env: Mapping[str, str]
    env_file: str | None
    roles: Mapping[str, Any]
    resources: Mapping[str, Mapping[str, Any]]
    working_dir: str | None
    address: str | None


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunResult):
    """The whole run.json: how far the run is, and what a resume or a revived controller continues from.

    Attributes:
      failures: What ended the attempts that --max-failures counts.
      created_at_s: Unix time of the run's submit, as is `updated_at_s` of this one; both are set by
        RunRecordStore.
      driver: Which process drives the run, as raydist.storage.claims describes it.
      datasets: Names of the datasets that a resume has to give again.
      code: The code that travelled with the run; None where none did. Like the next two, it is as of the last
        submit or resume, and None or empty for a run of an older raydist.
      environment: The hosts that its tasks had.
      versions: Of Python and all installed packages, as the chief saw them.
      claim: Number of the claim that it was written under; None for a run of an older raydist.
    """

    failures: tuple[AttemptEnd, ...] = ()
    spec: SpecText = field(default_factory=SpecText)
    plan: Mapping[str, Any] = field(default_factory=dict)
    created_at_s: Time | None = None
    updated_at_s: Time | None = None
    driver: Driver | None = None
    datasets: tuple[str, ...] = ()
    code: CodeRecord | None = None
    environment: Environment = field(default_factory=Environment)
    versions: Versions = field(default_factory=dict)
    claim: int | None = None

    @classmethod
    def of(cls, result: RunResult, **facts: Any) -> RunRecord:
        """Returns the record of where a run stands."""
        return cls(**{each.name: getattr(result, each.name) for each in fields(RunResult)}, **facts)

    @property
    def is_detached(self) -> bool:
        """Whether a controller in a Ray drives the run."""
        return self.driver is not None and "actor" in self.driver

    @property
    def ray_address(self) -> str | None:
        """The Ray that a detached run is in; None for any other run."""
        return None if self.driver is None else self.driver.get("address")

    @property
    def driver_name(self) -> str:
        """The process that drives the run, for messages."""
        driver = self.driver
        return f"process {driver and driver['pid']} of host {driver and driver['host']}"

    def entry_of(self, task: TaskId) -> TaskRecord:
        """Returns what is known of a task; raises MistakeError if the run has no such task."""
        entries = {entry.task: entry for entry in self.tasks}
        if task not in entries:
            known = ", ".join(map(str, entries)) or "none"
            raise MistakeError(f"run {self.run} has no task {task}; it has {known}")
        return entries[task]

    def check_is_live(self, purpose: str) -> None:
        """Raises MistakeError once the run has ended; `purpose` is what only a live run has or can be."""
        if self.state.is_terminal:
            raise MistakeError(
                f"run {self.run} has ended: {self.state.value} after {counted(self.steps, 'step')}; only a "
                f"live run {purpose}"
            )

    def as_cancelled(self, run: RunStorage) -> RunRecord:
        """Returns what another run of the same job, which nobody drives, continues from."""
        return dataclasses.replace(
            self,
            run=run.run,
            storage=run.uri(run.run),
            state=RunState.CANCELLED,
            error=None,
            failures=(),
            driver=None,
            claim=None,
        )

    def result(self) -> RunResult:
        """Returns how far the run is, without the rest."""
        return RunResult(**{one.name: getattr(self, one.name) for one in fields(RunResult)})


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
        self._is_indexed = False
        self.written_state: RunState | None = None

    def replace(self, record: RunRecord) -> None:
        """Writes the whole run.json, with secrets taken out.

        The time of creation is that of the run's submit, also after a resume. The record of a run that
        has ended is tried for a while; while the run is running, another one follows within a second.
        """
        now_s = self._clock()
        if self._created_at_s is None:
            # The first record is written once Ray has started.
            submitted_at_s = max(0.0, now_s - (record.timings.get("total") or 0.0))
            self._created_at_s = self._stored_creation() or submitted_at_s
        whole = dataclasses.replace(record, created_at_s=self._created_at_s, updated_at_s=now_s)
        storage = self._storage if record.state.is_terminal else self._hasty_storage
        if not self._is_indexed:
            storage.write_bytes(self._storage.index_entry(self._created_at_s), b"")
            self._is_indexed = True
        indent = 1 if len(whole.tasks) <= _MOST_INDENTED else None
        storage.write_text(self._storage.record, dump_plain_json(as_plain(whole), indent=indent))
        self.written_state = record.state

    def exists(self) -> bool:
        return self._storage.exists(self._storage.record)

    def read(self) -> RunRecord:
        """Returns the stored record; raises like `read_record`."""
        return read_record(self._storage)

    def _stored_creation(self) -> float | None:
        return created_at_s(self._storage.read_bytes(self._storage.record)) if self.exists() else None


def read_record(storage: RunStorage) -> RunRecord:
    """Returns a run's run.json.

    Raises:
      MistakeError: There is no such run; the message gives the near names.
      StorageError: The record cannot be read, or is damaged: no JSON, or with a field of another type.
    """
    if not storage.exists(storage.record):
        raise MistakeError(no_such_run(storage, storage.run))
    return settled_record(storage.read_bytes(storage.record), storage)


def settled_record(content: bytes, storage: RunStorage) -> RunRecord:
    """Returns the record that was read, or one that is read again where this one was cut off.

    pyarrow asks an object store for a file's size first. Of a record that was replaced by a larger one
    in between, it gets the beginning.
    """
    is_replaced_whole = storage.local_path() is not None
    for pause_s in () if is_replaced_whole else _PAUSES_S:
        try:
            return decode_record(content, storage)
        except StorageError:
            time.sleep(pause_s)
            content = storage.read_bytes(storage.record)
    return decode_record(content, storage)


def decode_record(content: bytes, storage: RunStorage) -> RunRecord:
    """Returns the record that was read; each field has its type, also inside of lists and objects."""
    try:
        record = parse_json(content)
        if not isinstance(record, dict):
            raise ValueError("it holds no JSON object")
        # Not the record's own name: it would be used as a path, and a copy has another one.
        known = {"storage": storage.uri(storage.run), **record, "run": storage.run}
        found: RunRecord = from_plain(known, RunRecord)
    except ValueError as error:
        raise StorageError(
            f"{storage.uri(storage.record)} is damaged: {error}; {without_record(storage, storage.run)}"
        ) from error
    return found
