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
from raydist.storage.run_record import RunRecordStore
from raydist.storage.segments import EventWriter

logger = logging.getLogger(__name__)

# A driver that lives replaces run.json about once a second.
_LIVES_WITHIN_S = 10.0
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class RunFolder:
    """Where one run is kept.

    Attributes:
      uri: The folder.
      record: Replaces run.json.
      first_attempt: Number of the first attempt, which is not 0 for a run that is resumed.
    """

    def __init__(self, storage: Storage, layout: RunLayout, *, first_attempt: int) -> None:
        self._storage = storage
        self._layout = layout
        self.uri = storage.uri(layout.run)
        self.record = RunRecordStore(storage, layout)
        self.first_attempt = first_attempt

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
        return folder

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
    if record["state"] in _ENDED or written_s is None or now_s - float(written_s) >= _LIVES_WITHIN_S:
        return
    raise SpecError(
        f"run {record['run']} still goes on ({record['state']}); "
        f"wait for its end, or stop it first: raydist stop {record['run']}"
    )
