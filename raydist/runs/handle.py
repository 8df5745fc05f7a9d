"""RunHandle: a run in a thread of this process or beyond it, and how its end is reported."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from raydist.errors import RaydistError
from raydist.outcome.result import RunResult
from raydist.spec.quantities import Duration, parse_duration
from raydist.spec.tasks import chief_of, parse_any_task
from raydist.spec.text import as_submitted, facts_html

if TYPE_CHECKING:
    from raydist.controller.controller import Controller


class RunHome(Protocol):
    """Where a run is driven."""

    def status(self) -> RunResult:
        """Returns where the run stands now."""

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for the run's end; returns False after `timeout_s`; None waits without limit."""

    def request_stop(self) -> None:
        """Asks the run to stop; harmless when it has ended."""


class RunHandle:
    """A run that is active or has ended, as `raydist.submit` and `raydist.attach` return it.

    Example:
        handle = raydist.attach("cifar-20261121-093012-1f3a")
        if not handle.status().state.is_terminal:
            handle.stop()

    Attributes:
      name: The run's name.
    """

    def __init__(self, name: str, home: RunHome, *, storage: str) -> None:
        """Takes where the run is driven, and the storage that it is kept on."""
        self.name = name
        self._home = home
        self._storage = storage
        self._seen: RunResult | None = None

    def __repr__(self) -> str:
        """Returns the name, and what `status()` returned last; reads nothing, as debuggers ask for it too."""
        if self._seen is None:
            return f"RunHandle({self.name!r})"
        return f"RunHandle({self.name!r}, last seen {self._seen.state.name}, steps={self._seen.steps})"

    def _repr_html_(self) -> str:
        try:
            return self.status()._repr_html_()
        except RaydistError as error:
            return facts_html(self.name, [("error", error)])

    def status(self) -> RunResult:
        """Returns where the run stands now.

        Example:
            status = handle.status()
            print(status.state, status.steps, status.metrics)

        Raises:
          StorageError: The run's record cannot be read. Raised only for runs that another process drives.
        """
        self._seen = self._home.status()
        return self._seen

    def result(self, *, timeout: Duration | None = None) -> RunResult:
        """Waits for the run's end and returns its result.

        Example:
            try:
                result = handle.result(timeout="5m")
            except TimeoutError:
                print(handle.status().steps)

        Args:
          timeout: How long to wait, in seconds or as `90s`, `5m`, `2h`; None waits for ever.

        Raises:
          TimeoutError: It did not end in `timeout`; it is still running.
          SpecError: `timeout` is not a duration.
          RunCancelledError: The run was stopped; `error.result` is its result.
          RaydistError: The run failed (`error.result` is its result), or its driver has died.
        """
        timeout_s = None if timeout is None else parse_duration("timeout", timeout)
        if not self._home.wait(timeout_s):
            raise TimeoutError(f"run {self.name} did not end within {timeout_s:g} s; it is still running")
        return checked(self.status())

    def stop(self) -> None:
        """Asks the run to stop and returns at once. It does nothing when the run has ended.

        Example:
            handle.stop()
            with contextlib.suppress(raydist.RunCancelledError):
                handle.result(timeout="1m")

        Raises:
          MistakeError: No process drives the run any more, or one of another host does.
          ClusterError: The Ray of a detached run cannot be reached.
        """
        self._home.request_stop()

    def logs(self, *, task: str | None = None, attempt: int | None = None) -> str:
        """Returns what a task has printed so far.

        Example:
            print(handle.logs(task="worker/1", attempt=0))

        Args:
          task: The task, such as `worker/1`; the chief when omitted.
          attempt: The attempt's number, from 0; the last attempt when omitted.

        Raises:
          SpecError: `task` is not written like `worker/1`.
          StorageError: The logs cannot be read.
        """
        from raydist.storage.logs import read_log
        from raydist.storage.run_storage import open_run

        status = self.status()
        chief = chief_of(one.task.task_type for one in status.tasks)
        asked = chief if task is None else parse_any_task(task)
        number = status.attempts - 1 if attempt is None else attempt
        storage = open_run(self._storage, run=self.name)
        return as_submitted(read_log(storage, task=asked, attempt=number))


class ThreadedRun:
    """Implements RunHome: the controller is in a thread of this process, which does not end before it."""

    def __init__(self, name: str, controller: Controller, held: contextlib.ExitStack) -> None:
        """Starts the thread; it closes `held` once the run has ended."""
        self._controller = controller
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(held,), name=f"raydist-{name}")
        self._thread.start()

    def status(self) -> RunResult:
        return self._controller.status()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits as in RunHome; raises here what the controller should not have met."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._crash is not None:
            raise self._crash
        return True

    def request_stop(self) -> None:
        self._controller.request_stop()

    def _run(self, held: contextlib.ExitStack) -> None:
        try:
            with held:
                self._controller.run()
        except BaseException as error:  # raised again by `wait`, in the thread that asks for it
            self._crash = error


def checked(result: RunResult) -> RunResult:
    """Returns the result of a run that succeeded; raises the error of any other, with it as `result`."""
    try:
        result.raise_for_state()
    except RaydistError as error:
        error.result = result
        raise
    return result
