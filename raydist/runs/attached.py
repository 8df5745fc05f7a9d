"""AttachedRun: a run that something else drives, seen through storage and reached where it lives."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from raydist.errors import ClusterError, MistakeError
from raydist.outcome.result import RunResult, command_for
from raydist.runtime.cluster.connection import connect
from raydist.runtime.host.address import CLIENT_PREFIX, running_address
from raydist.storage import own_runs
from raydist.storage.claims import LIVES_WITHIN_S, is_alive, is_this_host
from raydist.storage.run_record import Driver, RunRecord, read_record
from raydist.storage.run_storage import RunStorage

if TYPE_CHECKING:
    from raydist.runtime.cluster.connection import Connection

_POLL_S = 0.2


class UntrustedAddressError(MistakeError):
    """A Ray that only the storage of a run names."""


class AttachedRun:
    """Implements handle.RunHome for a run of another process of this host, or of an actor in a Ray."""

    def __init__(self, storage: RunStorage, *, address: str | None = None) -> None:
        """Takes the address of a detached run's Ray; None takes the one that this user submitted it to."""
        self._storage = storage
        self._run = storage.run
        self._address = address

    @property
    def is_over(self) -> bool:
        return self._record().state.is_terminal

    @property
    def is_detached(self) -> bool:
        return self._record().is_detached

    def status(self) -> RunResult:
        return self._record().result()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for the run's end; returns False after `timeout_s`; None waits without limit.

        Raises:
          ClusterError: No process drives the run any more.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        asked_at_s = -math.inf
        while not self.is_over:
            now_s = time.monotonic()
            if deadline_s is not None and now_s >= deadline_s:
                return False
            if now_s - asked_at_s >= LIVES_WITHIN_S and _is_silent(self._record()):
                self._check_is_driven()
                asked_at_s = time.monotonic()
            time.sleep(_POLL_S)
        return True

    def request_stop(self) -> None:
        """Asks the process that drives the run to stop it; harmless when it has ended.

        Raises:
          MistakeError: No process drives it, or one of another host.
          ClusterError: The Ray that it is in cannot be reached, or its controller does not answer.
        """
        record = self._record()
        if record.state.is_terminal:
            return
        if not record.is_detached:
            os.kill(self._living_process(record)["pid"], signal.SIGINT)
        else:
            self._stop_detached(record)

    def where(self) -> str:
        """Returns what drives the run, for messages."""
        record = self._record()
        if record.is_detached:
            return f"its controller is in the Ray at {record.ray_address}"
        return f"{record.driver_name} drives it"

    def _stop_detached(self, record: RunRecord) -> None:
        from raydist.runtime.detach import controller_actor

        is_asked = self._ask_ray(record, controller_actor.request_stop)
        if not is_asked and not self.is_over:
            raise MistakeError(_gone_sentence(record))

    def _record(self) -> RunRecord:
        return read_record(self._storage)

    def _living_process(self, record: RunRecord) -> Driver:
        """Returns the living process of this host that drives the run."""
        run, driver = record.run, record.driver
        if driver is None:
            raise MistakeError(f"run {run} does not say which process drives it; stop that one")
        if not is_this_host(driver):
            raise MistakeError(
                f"run {run} is driven by process {driver['pid']} on host {driver['host']}; "
                f"run `{command_for(record.storage, 'stop')}` there"
            )
        if not is_alive(driver):
            raise MistakeError(_gone_sentence(record))
        noted = own_runs.recall(self._storage).get("driver") or {}
        if (noted.get("pid"), noted.get("start")) != (driver["pid"], driver["start"]):
            raise MistakeError(
                f"run {run} is driven by process {driver['pid']} of this host, as its storage says, and this "
                "user has not submitted it there, so it gets no signal; stop the run in its own shell"
            )
        return driver

    def _check_is_driven(self) -> None:
        record = self._record()
        driver = record.driver
        if record.is_detached:
            from raydist.runtime.detach import controller_actor

            try:
                is_driven = self._ask_ray(record, controller_actor.is_running)
            except UntrustedAddressError:  # then nothing can be known from here
                return
        else:
            # Of a process on another host nothing can be known from here.
            is_driven = driver is None or not is_this_host(driver) or is_alive(driver)
        if not is_driven and not self.is_over:
            raise ClusterError(_gone_sentence(record))

    def _ask_ray(self, record: RunRecord, ask: Callable[[str], bool]) -> bool:
        address = trusted_address(self._storage, self._address, told=record.ray_address)
        try:
            with connect(address) as connection:
                if not connection.owns and self._address is None:
                    _check_is_same(connection, record.ray_address or "")
                return ask(self._run)
        except ClusterError as error:
            raise ClusterError(
                f"run {self._run} cannot be asked for: {error}; where that Ray is gone its runs are too, and "
                f"`{command_for(record.storage, 'resume')}` continues this one"
            ) from error


def trusted_address(storage: RunStorage, asked: str | None, *, told: str | None) -> str | None:
    """Returns the Ray to join for a run: the one that is asked for, or that this user has submitted it to.

    Args:
      told: The one that the run's storage names, which others may write.

    Raises:
      MistakeError: Only the storage names it. Whoever answers there could run code in this process. Or its
        driver has started it inside, where no other process can join it.
    """
    if asked is not None or told in (None, "auto"):
        return asked or told
    if told == "local":
        raise UntrustedAddressError(
            f"run {storage.run} uses a Ray that its driver has started, and other processes cannot join it; "
            "run the command on the host of the driver"
        )
    if told in own_runs.recall(storage).get("addresses", ()) or told == running_address():
        return told
    raise UntrustedAddressError(
        f"run {storage.run} is in the Ray at {told}, as its storage says, and this user has not submitted it "
        f"there from this machine, so that Ray is not joined; add --address {told} if you trust it"
    )


def _check_is_same(connection: Connection, address: str) -> None:
    """Raises ClusterError where this process is connected to another Ray already; it can have but one."""
    is_comparable = not connection.is_client and not address.startswith(CLIENT_PREFIX)
    if is_comparable and connection.address != address:
        raise ClusterError(
            f"this process is connected to the Ray at {connection.address}, and the run is in the one at "
            f"{address}; ask from another process"
        )


def _is_silent(record: RunRecord) -> bool:
    # Another host's clock may be off by more; then it is only asked for more often.
    return time.time() - (record.updated_at_s or 0.0) >= LIVES_WITHIN_S


def _gone_sentence(record: RunRecord) -> str:
    if record.is_detached:
        what = f"its controller is no longer in the Ray at {record.ray_address}, nor are its tasks"
    else:
        what = f"{record.driver_name}, which drove it, has died, and its tasks with it"
    return (
        f"run {record.run} does not run: {what}; continue it with `{command_for(record.storage, 'resume')}`"
    )
