"""RunFolder: a run's name, claimed on storage by the process that is going to drive it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raydist.errors import SpecError, StorageError
from raydist.spec.job import JobSpec
from raydist.spec.tasks import TaskId
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from raydist.storage.run_record import ENDED, RunRecordStore
from raydist.storage.segments import EventWriter

logger = logging.getLogger(__name__)

# A controller that lives replaces run.json about once a second.
LIVES_WITHIN_S = 10.0


class RunFolder:
    """Where one run is kept.

    Attributes:
      uri: The folder.
      record: Replaces run.json.
      first_attempt: Number of the first attempt, which is not 0 for a run that is resumed.
      datasets: Names of the datasets that a run which is resumed was given.
    """

    def __init__(self, storage: Storage, layout: RunLayout, *, first_attempt: int) -> None:
        self._storage = storage
        self._layout = layout
        self.uri = storage.uri(layout.run)
        self.record = RunRecordStore(storage, layout)
        self.first_attempt = first_attempt
        self.datasets: tuple[str, ...] = ()

    @classmethod
    def claim(cls, job: JobSpec, *, now: Callable[[], float] = time.time) -> RunFolder:
        """Checks that the run may be written where the job says; writes nothing of it yet.

        Raises:
          SpecError: The name is taken by another run, or by one that goes on.
          MistakeError: There is no run to resume; the message gives the near names.
          StorageError: Storage cannot be written.
        """
        storage, layout = Storage.open(job.storage), RunLayout(run=job.name)
        storage.check_writable()
        if not job.resume and storage.exists(layout.run):
            raise SpecError(
                f"name is {job.name!r}, which {storage.uri()} has already; "
                "choose another --name, or go on from that run with --resume"
            )
        folder = cls(storage, layout, first_attempt=0)
        if job.resume:
            record = folder.record.read()
            _check_is_over(record, now())
            folder.first_attempt = int(record["attempts"])
            folder.datasets = tuple(record.get("datasets", ()))
        return folder

    @classmethod
    def of(cls, job: JobSpec) -> RunFolder:
        """Returns the folder of a run that is claimed already."""
        return cls(Storage.open(job.storage), RunLayout(run=job.name), first_attempt=0)

    def store_code(self, code: bytes, *, owner: str) -> None:
        """Keeps the packed working directory for attempts that begin once its submitter is gone."""
        self._storage.write_bytes(self._layout.code(owner), code)

    def has_code(self, *, owner: str) -> bool:
        return self._storage.exists(self._layout.code(owner))

    def read_code(self, *, owner: str) -> bytes:
        return self._storage.read_bytes(self._layout.code(owner))

    def remove_code(self, *, owner: str) -> None:
        self._storage.delete(self._layout.code(owner))

    def abandon(self, *, owner: str) -> None:
        """Takes back what was stored for a run that did not come about; an earlier one of that name stays."""
        self.remove_code(owner=owner)
        if not self._storage.list_names(self._layout.run):
            self._storage.delete(self._layout.run)

    def task_logs(self, task: TaskId, attempt: int) -> str:
        """Returns the URI of a task's log folder."""
        return self._storage.uri(self._layout.task_logs(task, attempt=attempt))

    @contextlib.contextmanager
    def open_events(self) -> Iterator[EventWriter]:
        """Opens the run's events, and writes the last of them in the end."""
        events = EventWriter.open(self._storage, self._layout)
        try:
            yield events
        finally:
            try:
                events.flush()
            except StorageError as error:  # how the run ended is worth more
                logger.warning("the last events of the run could not be written: %s", error)


def _check_is_over(record: Mapping[str, Any], now_s: float) -> None:
    written_s = record["updated_at_s"]
    if record["state"] in ENDED or written_s is None or now_s - float(written_s) >= LIVES_WITHIN_S:
        return
    raise SpecError(
        f"run {record['run']} still goes on ({record['state']}); "
        f"wait for its end, or stop it first: raydist stop {record['run']}"
    )
