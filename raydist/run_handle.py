"""RunHandle: a run that goes on in a thread of this process, and how its end is told."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from raydist.controller.result import RunResult
from raydist.errors import RaydistError
from raydist.spec.job import JobSpec

if TYPE_CHECKING:
    from raydist.controller.controller import Controller


class RunHandle:
    """A run that goes on in a thread of this process, as `raydist.submit` returns it.

    Attributes:
      name: The run's name.
    """

    def __init__(self, job: JobSpec, controller: Controller, held: contextlib.ExitStack) -> None:
        """Starts the thread; it closes `held` once the run has ended."""
        self.name = job.name
        self._job = job
        self._controller = controller
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(held,), name=f"raydist-{job.name}")
        self._thread.start()

    def status(self) -> RunResult:
        """Returns where the run stands now."""
        return self._controller.status()

    def result(self, *, timeout_s: float | None = None) -> RunResult:
        """Waits for the run's end and returns its result.

        Raises:
          TimeoutError: It did not end in `timeout_s`; it goes on.
          RaydistError: It did not succeed, with the result as `result`.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"run {self.name} did not end within {timeout_s:g} s; it goes on")
        if self._crash is not None:
            raise self._crash
        return checked(self.status())

    def stop(self) -> None:
        """Asks the run to stop; `result` then tells when it has. Harmless when it has ended."""
        self._controller.request_stop()

    def logs(self, *, task: str = "worker/0", attempt: int | None = None) -> str:
        """Returns what a task has printed so far; of the last attempt when `attempt` is omitted."""
        from raydist.spec.tasks import TaskId
        from raydist.storage.filesystem import Storage
        from raydist.storage.layout import RunLayout
        from raydist.storage.logs import read_log

        number = self.status().attempts - 1 if attempt is None else attempt
        storage, layout = Storage.open(self._job.storage), RunLayout(run=self.name)
        return read_log(storage, layout, task=TaskId.parse(task), attempt=number)

    def _run(self, held: contextlib.ExitStack) -> None:
        try:
            with held:
                self._controller.run()
        except BaseException as error:  # raised again by `result`, in the thread that asks for it
            self._crash = error


def checked(result: RunResult) -> RunResult:
    """Returns the result of a run that succeeded; raises the error of any other, with it as `result`."""
    try:
        result.raise_for_state()
    except RaydistError as error:
        error.result = result
        raise
    return result
