"""Detached runs: how they are handed to the cluster, and what their controller's actor does there."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raydist.controller.controller import Controller
from raydist.controller.revival import Revival
from raydist.errors import ClusterError, RaydistError, StorageError, TrainingError
from raydist.outcome.result import RunError
from raydist.outcome.status import RunState
from raydist.planning.plan import Plan
from raydist.runs.assembly import make_controller
from raydist.runs.hooks import GuardedHook
from raydist.runtime.cluster.connection import connect
from raydist.runtime.cluster.datasets import deserialize
from raydist.runtime.cluster.runtime_env import pickle_by_value
from raydist.runtime.detach import cluster_leftovers, controller_actor
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.host import salvage
from raydist.runtime.host.software import describe_difference, installed_versions
from raydist.storage import own_runs
from raydist.storage.claims import this_process
from raydist.storage.provenance import CodeRecord
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import open_run

T = TypeVar("T")

logger = logging.getLogger(__name__)

_RUNNER = "raydist.runs.detached:DetachedController"
# A submitter that lives hands over the code within this, and takes the refusal of a run within that.
_BEGIN_TIMEOUT_S = 30.0
_REFUSAL_TIMEOUT_S = 10.0
# How long a controller that was brought back tries to read what it continues from.
_REVIVAL_TIMEOUT_S = 600.0
_REVIVAL_POLL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the controller's actor is made with. Ray keeps it for each incarnation of the actor.

    Attributes:
      code_digest: SHA-256 of the code that travels with the run, None without any; it comes by itself, and is
        kept on storage, where others may be able to replace it.
      address: Where another shell finds the Ray that the run is in.
      submitted_at_s: Unix time.
      traced: Where the code comes from.
      task_runner: See `LaunchSpec`.
      datasets: What `serialize` returned; unpickled by an incarnation that drives the run.
      owner: Marks what belongs to this submit: its record, and what its tasks leave on their hosts.
      versions: Of what has to be the same everywhere, on the submitter's host.
    """

    plan: Plan
    code_digest: str | None
    address: str
    submitted_at_s: float
    traced: CodeRecord | None = None
    task_runner: str | None = None
    datasets: Mapping[str, bytes] = field(default_factory=dict)
    owner: str = field(default_factory=salvage.new_owner)
    versions: Mapping[str, str] = field(default_factory=installed_versions)


def hand_over(plan: Plan, *, code: bytes | None, **facts: Any) -> None:
    """Gives the run to the connected Ray, and returns once it is accepted; raises as `launch` does.

    Args:
      facts: Fields of `Launch`.
    """
    digest = None if code is None else hashlib.sha256(code).hexdigest()
    launch = pickle_by_value(Launch(plan=plan, code_digest=digest, **facts))
    controller_actor.launch(plan.job.name, runner=_RUNNER, launch=launch, code=code)
    run = open_run(plan.job.storage, run=plan.job.name)
    own_runs.remember(run, addresses=(plan.job.address, facts["address"]))


class DetachedController:
    """Implements controller_actor.ControllerRunner.

    The run begins with its first record, written here: without one, a new incarnation of the actor waits for
    the submitter to ask once more, and ends when it does not.
    """

    def __init__(self, launch: bytes) -> None:
        self._launch: Launch = pickle.loads(launch)
        self._job = self._launch.plan.job
        self._code: Future[bytes | None] = Future()
        self._answer: Future[RaydistError | None] = Future()
        self._is_stopped = threading.Event()
        self._controller: Controller | None = None

    def begin(self, code: bytes | None) -> RaydistError | None:
        with contextlib.suppress(InvalidStateError):  # asked once more, or stopped
            self._code.set_result(code)
        return self._answer.result()

    def stop(self) -> None:
        self._is_stopped.set()
        self._code.cancel()
        if self._controller is not None:
            self._controller.request_stop()

    def run(self, *, is_revived: bool) -> None:
        try:
            self._run(is_revived)
        except RaydistError as error:
            self._refuse(error)
        except Exception as error:
            self._refuse(ClusterError(f"the run's controller failed: {error!r}"))
            raise

    def _run(self, is_revived: bool) -> None:
        folder = RunFolder.of(self._job)
        record = self._patiently(lambda: self._own_record(folder), may_wait=is_revived)
        if record is None:
            self._begin_run(may_have_begun=is_revived)
            return
        self._answer.set_result(None)  # to a submitter without an answer from the incarnation before
        owner = self._launch.owner
        if record.state.is_terminal:
            folder.remove_code(owner=owner)
        elif self._patiently(lambda: folder.reclaim(id_=owner)):
            self._take_up_again(folder, record)
        else:
            logger.warning("run %s has been resumed by another process, which now drives it", self._job.name)
            folder.remove_code(owner=owner)

    def _own_record(self, folder: RunFolder) -> RunRecord | None:
        """Returns the record that an earlier incarnation of this controller wrote; None where none has."""
        record = folder.record.read() if folder.record.exists() else None
        driver = record and record.driver
        return record if driver and driver.get("id") == self._launch.owner else None

    def _patiently(self, read: Callable[[], T], *, may_wait: bool = True) -> T:
        """Reads what a run cannot continue without, for as long as a storage may be away."""
        deadline = time.monotonic() + (_REVIVAL_TIMEOUT_S if may_wait else 0.0)
        while True:
            try:
                return read()
            except StorageError as error:
                if time.monotonic() >= deadline or self._is_stopped.wait(_REVIVAL_POLL_S):
                    raise
                logger.warning("run %s cannot be taken up again yet: %s", self._job.name, error)

    def _begin_run(self, *, may_have_begun: bool) -> None:
        owner = self._launch.owner
        if may_have_begun:  # an incarnation that died before its first record
            RunFolder.of(self._job).abandon(owner=owner)
        try:
            code = self._code.result(timeout=_BEGIN_TIMEOUT_S)
        except (FutureTimeoutError, CancelledError):
            self._refuse(TrainingError(f"run {self._job.name} was called off before it began"))
            return
        self._check_versions()
        # Looked at once more: this host may see another storage than the submitter's.
        folder = RunFolder.open(self._job)
        with contextlib.ExitStack() as on_error:
            on_error.callback(folder.abandon, owner=owner)
            folder.claim(holder=self._describe(), id_=owner)
            if code is not None:
                folder.store_code(code, owner=owner)
            self._drive(folder, code, unless_accepted=on_error)

    def _take_up_again(self, folder: RunFolder, record: RunRecord) -> None:
        launch = self._launch
        cluster_leftovers.clear(launch.owner, storage_uri=self._job.storage, run=self._job.name)
        spent_s = max(0.0, time.time() - launch.submitted_at_s)
        revival = Revival.of(record, history=record.failures, spent_s=spent_s)
        logger.warning("run %s: %s", self._job.name, revival.notes[-1])
        try:
            code = self._read_code(folder) if launch.code_digest else None
        except StorageError as error:
            failed = RunError.from_exception(error, attempt=None)
            folder.record.replace(dataclasses.replace(record, state=RunState.FAILED, error=failed))
            raise
        self._drive(folder, code, revival=revival)

    def _read_code(self, folder: RunFolder) -> bytes:
        code = self._patiently(lambda: folder.read_code(owner=self._launch.owner))
        if hashlib.sha256(code).hexdigest() != self._launch.code_digest:
            raise StorageError(
                f"the code of run {self._job.name} in {folder.uri} has been changed since the run was "
                f"submitted, and is not run; resume with code that you trust: raydist resume {self._job.name}"
            )
        return code

    def _drive(
        self,
        folder: RunFolder,
        code: bytes | None,
        *,
        revival: Revival | None = None,
        unless_accepted: contextlib.ExitStack | None = None,
    ) -> None:
        """Brings the run to its end; `unless_accepted` undoes the claim where that cannot be recorded."""
        launch = self._launch
        with connect(None) as connection, folder.open_events() as events, cluster_leftovers.swept_beside():
            controller = make_controller(
                launch.plan,
                LaunchSpec(
                    connection=connection,
                    storage_uri=launch.plan.job.storage,
                    run_uri=folder.uri,
                    code=code,
                    owner=launch.owner,
                    runner=launch.task_runner,
                    datasets=deserialize(launch.datasets),
                ),
                folder,
                events,
                traced=launch.traced,
                driver=self._describe(),
                tell=GuardedHook(None),
                ray_s=max(0.0, time.time() - launch.submitted_at_s),
                revival=revival,
            )
            if unless_accepted is not None:
                controller.record_acceptance()
                unless_accepted.pop_all()
                self._answer.set_result(None)
            self._controller = controller
            if self._is_stopped.is_set():
                controller.request_stop()
            try:
                controller.run()
            finally:
                folder.remove_code(owner=launch.owner)

    def _describe(self) -> dict[str, Any]:
        launch = self._launch
        return {**this_process(), "actor": self._job.name, "address": launch.address, "id": launch.owner}

    def _check_versions(self) -> None:
        host = str(this_process()["host"])
        references = {"the driver": self._launch.versions}
        difference = describe_difference(host, installed_versions(), references=references)
        if difference is not None:
            raise ClusterError(difference)

    def _refuse(self, problem: RaydistError) -> None:
        """Answers `begin`, and leaves the answer time to get through."""
        if self._answer.done():
            logger.error("run %s: %s", self._job.name, problem)
            return
        self._answer.set_result(problem)
        self._is_stopped.wait(_REFUSAL_TIMEOUT_S)
