"""RunFolder: a run's folder on storage, claimed by the process that is going to drive the run."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raydist.errors import ClusterError, SpecError, StorageError
from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState
from raydist.spec.job import JobSpec, Resume
from raydist.spec.tasks import TaskId
from raydist.storage import claims
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.layout import CLAIMS
from raydist.storage.run_record import RunRecord, RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter, read_events

logger = logging.getLogger(__name__)


class RunFolder:
    """Where one run is kept.

    Attributes:
      uri: The folder.
      record: Replaces run.json.
      claim_number: Number of the claim that this process holds, or held; None before.
      before: The record of the run that is resumed, once it was read; None for a new one.
    """

    def __init__(self, storage: RunStorage, *, resume: Resume, now: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._claims = claims.ClaimStore(storage)
        self._resume = resume
        self._now = now
        self.uri = storage.uri(storage.run)
        self.record = RunRecordStore(storage)
        self._held: claims.Claim | None = None
        self._written_s = 0.0
        self._is_overtaken = False
        self.claim_number: int | None = None
        self.before: RunRecord | None = None

    @classmethod
    def of(cls, job: JobSpec, *, now: Callable[[], float] = time.time) -> RunFolder:
        """Returns the folder of a run, and looks at nothing."""
        return cls(open_run(job.storage, run=job.name), resume=job.resume, now=now)

    @classmethod
    def open(cls, job: JobSpec, *, now: Callable[[], float] = time.time) -> RunFolder:
        """Returns the folder of a run where this host can write it, with what a resume takes over.

        Raises:
          MistakeError: There is no run to resume, and `auto` was not asked; the message gives the near names.
          StorageError: Storage cannot be written.
        """
        folder = cls.of(job, now=now)
        folder._storage.check_writable()
        folder._take_over_record()
        return folder

    @property
    def first_attempt(self) -> int:
        """Number of the first attempt, which is not 0 for a run that is resumed."""
        return 0 if self.before is None else self.before.attempts

    def succeeded(self) -> RunResult | None:
        """Returns the result of the run of that name if it has succeeded and nobody drives it; else None.

        Raises:
          StorageError: What is stored cannot be read, or says nothing sensible about it.
        """
        newest = self._claims.newest()
        record = self._read_record()
        if record is None or claims.is_driven(newest, record, now_s=self._now()):
            return None
        return record.result() if record.state is RunState.SUCCEEDED else None

    def check_is_free(self) -> int:
        """Returns the number of the next claim, where nobody holds the newest one any more.

        Raises:
          SpecError: The name is taken by another run, or somebody drives the run; the message says who.
          StorageError: What is stored cannot be read, or says nothing sensible about it.
        """
        newest = self._claims.newest()
        record = self._read_record()  # after the claims: its writer may just have made one
        if claims.is_driven(newest, record, now_s=self._now()):
            raise SpecError(self._goes_on(newest, record) if self._resume else self._is_taken(newest, record))
        if self._is_in_the_way(record):
            raise SpecError(self._exists())
        return 1 + max(
            -1 if newest is None else newest.number, -1 if record is None else claims.number_of(record)
        )

    def claim(self, *, holder: Mapping[str, Any] | None = None, id_: str | None = None) -> None:
        """Makes this process the one that drives the run. It holds the claim until its run has ended.

        Args:
          holder: What the others are told; this process unless given.
          id_: By which a later incarnation of a controller knows the claim for its own; see `reclaim`.

        Raises:
          SpecError: See `check_is_free`.
          StorageError: See `check_is_free`; or the claim cannot be written.
        """
        holder, id_ = holder or claims.this_process(), id_ or uuid.uuid4().hex
        while True:
            claim = claims.Claim(number=self.check_is_free(), id=id_, holder=holder, at_s=self._now())
            if self._add(claim):
                break
        self._take_over_record()  # it may have been resumed, and have ended, since it was opened
        if self.before is not None and self.before.updated_at_s is None:
            logger.warning(
                "%s is damaged or missing; the run continues from its checkpoint of step %d, without its "
                "earlier metrics and failures",
                self._storage.uri(self._storage.record),
                self.before.steps,
            )

    def reclaim(self, *, id_: str) -> bool:
        """Takes up the claim of an earlier incarnation of this controller; False if another has taken it."""
        newest = self._claims.newest()
        if newest is None or newest.id != id_:
            return False
        self._take(newest)
        return True

    def write_record(self, record: RunRecord) -> None:
        """Replaces run.json, by the holder of the claim.

        Raises:
          ClusterError: Nothing was written for so long that another process has taken the run over, or the
            run had ended and was resumed.
          StorageError: See RunRecordStore.
        """
        written = self.record.written_state
        is_over = written is not None and written.is_terminal  # and may be resumed by anybody since
        if is_over or self._now() - self._written_s >= claims.LIVES_WITHIN_S / 2:
            self._check_is_held()
        self.record.replace(dataclasses.replace(record, claim=self.claim_number))
        self._written_s = self._now()

    def _check_is_held(self) -> None:
        newest = self._claims.newest()
        if newest is None or self.claim_number is None or newest.number <= self.claim_number:
            return
        self._is_overtaken = True
        raise ClusterError(
            f"run {self._storage.run} has been taken over by {newest.who}, as this process had not written "
            f"run.json for {self._now() - self._written_s:.0f} s; its own tasks are stopped"
        )

    def release(self) -> None:
        """Gives the claim back. Where run.json says that the run has ended, nothing has to be done."""
        if self._held is None:
            return
        claims.let_go(self._held.id)
        if self.record.written_state is None or not self.record.written_state.is_terminal:
            try:
                self._claims.remove(self._held.number)
            except StorageError as error:  # why the run did not come about is worth more
                logger.warning("the claim of run %s could not be given up: %s", self._storage.run, error)
        self._held = None

    def store_code(self, code: bytes, *, owner: str) -> None:
        """Keeps the packed working directory for attempts that begin once its submitter is gone."""
        self._storage.write_bytes(self._storage.code(owner), code)

    def read_code(self, *, owner: str) -> bytes:
        return self._storage.read_bytes(self._storage.code(owner))

    def remove_code(self, *, owner: str) -> None:
        self._storage.delete(self._storage.code(owner))

    def keep_code(self, code: bytes) -> str:
        """Stores a copy of the code that stays with the run; returns its path below the run's folder."""
        key = self._storage.kept_code(hashlib.sha256(code).hexdigest())
        if not self._storage.exists(key):
            self._storage.write_bytes(key, code)
        return key.removeprefix(f"{self._storage.run}/")

    def abandon(self, *, owner: str) -> None:
        """Takes back what was stored for a run that did not come about; an earlier one of that name stays."""
        self.remove_code(owner=owner)
        if self.reclaim(id_=owner):
            self.release()

    def task_logs(self, task: TaskId, attempt: int) -> str:
        """Returns the URI of a task's log folder."""
        return self._storage.uri(self._storage.task_logs(task, attempt=attempt))

    @contextlib.contextmanager
    def open_events(self) -> Iterator[EventWriter]:
        """Opens the run's events, and writes the last of them in the end."""
        events = EventWriter.open(self._storage)
        try:
            yield events
        finally:
            try:
                if not self._is_overtaken:  # the number of the segment may be taken
                    events.flush()
            except StorageError as error:  # how the run ended is worth more
                logger.warning("the last events of the run could not be written: %s", error)

    def _add(self, claim: claims.Claim) -> bool:
        claims.hold(claim.id)  # first: other threads of this process see the claim as soon as it is stored
        try:
            if self._claims.add(claim):
                self._take(claim)
        finally:
            if self._held is None:
                claims.let_go(claim.id)
        return self._held is not None

    def _take(self, claim: claims.Claim) -> None:
        self._held, self.claim_number, self._written_s = claim, claim.number, self._now()

    def _is_in_the_way(self, record: RunRecord | None) -> bool:
        """Whether there is something that this run neither continues from nor may be added to."""
        if self._resume is True or (self._resume and record is not None):
            return False
        names = set(self._storage.list_names(self._storage.run))
        if self._resume:  # the process before may have died, or been preempted, before its first record
            return not all(self._storage.may_precede_record(name) for name in names)
        # A claim alone is of a process that died before the run began.
        return record is not None or bool(names - {CLAIMS})

    def _take_over_record(self) -> None:
        if self._resume:
            self.before = self._read_record() or (self.record.read() if self._resume is True else None)

    def _read_record(self) -> RunRecord | None:
        try:
            return self.record.read() if self.record.exists() else self._rebuilt()
        except StorageError as error:
            if not self._resume:
                raise SpecError(self._exists()) from error
            is_damage = isinstance(error.__cause__, ValueError | RecursionError)  # not a store that fails
            if not is_damage or (rebuilt := self._rebuilt()) is None:
                raise
            return rebuilt

    def _rebuilt(self) -> RunRecord | None:
        """Returns what a resume needs of a run.json that is lost; None if there are no checkpoints."""
        newest = CheckpointStore(self._storage).newest() if self._resume else None
        if newest is None:
            return None
        known = (event.get("attempt") for event in read_events(self._storage, on_damage=lambda _: None))
        attempts = 1 + max(newest.attempt, *(number for number in known if isinstance(number, int)), 0)
        return RunRecord(
            run=self._storage.run,
            state=RunState.CANCELLED,
            attempts=attempts,
            steps=newest.step,
            checkpoint=newest.uri,
            storage=self.uri,
        )

    def _exists(self) -> str:
        return (
            f"name is {self._storage.run!r}, which {self._storage.uri()} has already; "
            "choose another --name, or continue that run with --resume"
        )

    def _is_taken(self, claim: claims.Claim | None, record: RunRecord | None) -> str:
        return (
            f"name is {self._storage.run!r}, and the run of that name in {self._storage.uri()} "
            f"is driven by {_who(claim, record)}; choose another --name"
        )

    def _goes_on(self, claim: claims.Claim | None, record: RunRecord | None) -> str:
        run, state = self._storage.run, RunState.STARTING
        if record is not None and claims.is_of(claim, record):
            state = record.state
        return (
            f"run {run} is still running ({state}), driven by {_who(claim, record)}; "
            f"wait for its end, or stop it first: {self._storage.command('stop')}"
        )


def _who(claim: claims.Claim | None, record: RunRecord | None) -> str:
    if claim is not None and claim.damage is None:
        return claim.who
    return "nobody" if record is None else record.driver_name
