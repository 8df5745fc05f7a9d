"""The process that a task trains in: it takes its assignment from its agent, and tells it how it stands."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import importlib
import itertools
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import wrapt

from raydist.errors import StorageError
from raydist.outcome.status import (
    CodePlace,
    Command,
    FailureKind,
    TaskFailure,
    TaskMessage,
    TaskStatus,
    WorkerAddresses,
)
from raydist.planning.assignment import TaskAssignment, apply_changes, assignment_environment
from raydist.runtime.host.hardware import peak_memory_bytes
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.task_files import TaskFiles
from raydist.runtime.task.runner import TaskRunner, describe_failure, load_runner
from raydist.runtime.task.stacks import Standing, dump_stacks, place_in_code
from raydist.spec.secrecy import Secrets, secrets_of
from raydist.spec.tasks import TaskId
from raydist.storage.kept_state import HandedState


def join_run(ray: Any) -> None:
    """Gives the `init` of the module `ray` the namespace of the run. Called once that is imported."""
    ray.init = functools.partial(
        ray.init,
        namespace=os.environ.get("RAY_NAMESPACE"),
        # The task's log is not the place for what all processes of the job print.
        log_to_driver=False,
        logging_level=logging.WARNING,
    )


STATUS_INTERVAL_S = 0.25
# The run waits for the first statuses.
_QUICK_STATUS_INTERVAL_S = 0.05
_QUICK_FOR_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The first message: who the process is.

    Attributes:
      may_vanish: Whether it ends at once by SIGTERM.
    """

    task: TaskId
    host: str
    runner: str
    scratch_path: Path
    log: LogTarget
    may_vanish: bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """The second message: what it is to do.

    Attributes:
      assignment: Without its datasets, files and parcels.
      code_dir: The unpacked working directory; None when none travelled.
      port: The one that the agent holds for it.
      datasets: The task's shares of datasets, pickled by Ray; empty where there are none.
      kept: States in memory.
    """

    assignment: TaskAssignment = field(repr=False)
    code_dir: Path | None
    port: int
    datasets: bytes = field(default=b"", repr=False)
    kept: HandedState | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the agent answers to an `Ask`, or the error that it got instead."""

    number: int
    value: Any = field(default=None, repr=False)
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Asks the agent for something that it holds: `name` is a method, such as `parcels.get`."""

    number: int
    name: str
    args: tuple[Any, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The last status, or what has failed without one; the process waits to be killed."""

    outcome: TaskStatus | TaskFailure


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Answers STOP, after all that was asked before; the process waits to be killed."""

    status: TaskStatus


def run_task(link_fd: int) -> NoReturn:
    """Runs a task in this process, which ends once its agent is gone."""
    link = Connection(link_fd)
    begin = link.recv()
    assert isinstance(begin, Begin)
    _Task(link, begin).run()
    while True:
        threading.Event().wait()  # peers may need this process's server until the run is over


class _Task:
    def __init__(self, link: Connection, begin: Begin) -> None:
        self._link = link
        self._begin = begin
        self._sending = threading.Lock()
        self._runs: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._runner: TaskRunner | None = None
        self._secrets = Secrets()
        self._is_profile_asked = False
        self._place: CodePlace | None = None
        self._placed_after = (0, 0)
        self._standing = Standing()
        self._has_ended = False
        self._early: list[TaskMessage] | None = []  # that came before there was anything to do
        self._commanding = threading.Lock()
        self._leaving: str | None = None

    def run(self) -> None:
        # A host that is about to be taken away says so, to this process, its agent, or both.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._begin.may_vanish else self._note_sigterm)
        signal.siginterrupt(signal.SIGTERM, False)
        wrapt.register_post_import_hook(join_run, "ray")
        faulthandler.enable(all_threads=False)
        # `raydist stacks` sends it. In C, so that also a process shows its stacks that holds Python's lock.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        # `raydist profile` sends it. A system call of TensorFlow's or of the job's is not interrupted by it.
        signal.signal(signal.SIGUSR2, self._note_profile)
        signal.siginterrupt(signal.SIGUSR2, False)
        threading.Thread(target=self._listen, name="raydist-agent", daemon=True).start()
        if not self._warm_up():
            return
        run = self._runs.get()
        threading.Thread(target=self._push, name="raydist-status", daemon=True).start()
        self._handle_early()
        status = self._run(run)
        if status is not None:
            self._has_ended = True
            self._send(Ended(outcome=self._told(status)))

    def _warm_up(self) -> bool:
        begin = self._begin
        try:
            runner = load_runner(begin.runner)(begin.task, begin.host)
            runner.warm_up()
        except BaseException as error:
            # A process border: TensorFlow's import can fail in any way on a broken host.
            self._send(Ended(outcome=self._describe(error, FailureKind.START)))
            return False
        self._runner = runner
        return True

    def _run(self, run: Run) -> TaskStatus | None:
        """Returns the terminal status; None where the runner has let something through."""
        runner, begin = self._runner, self._begin
        assert runner is not None
        assignment = run.assignment
        try:
            self._secrets = secrets_of(assignment.job)
            apply_changes(assignment_environment(assignment), os.environ)
            files = TaskFiles(begin.scratch_path, begin.log, is_chief=assignment.is_chief)
            if run.code_dir is not None:
                sys.path.insert(0, str(run.code_dir))
                importlib.invalidate_caches()
                # Files that lie beside the job file are found by their relative names on every host.
                os.chdir(run.code_dir)
                files.watch_working_folder(run.code_dir)
            assignment = dataclasses.replace(
                assignment,
                files=files,
                parcels=_Parcels(self),
                datasets=_loaded(run.datasets),
                kept=run.kept,
            )
            return runner.run(assignment, run.code_dir, _Lease(self, run.port, index=0))  # type: ignore[arg-type]
        except BaseException as error:
            # A process border: every error that a runner lets through becomes a status.
            kind = FailureKind.STORAGE if isinstance(error, StorageError) else FailureKind.USER
            self._send(Ended(outcome=self._describe(error, kind)))
            return None

    def ask(self, name: str, *args: Any) -> Any:
        """Asks the agent, and waits for its answer."""
        number, future = next(self._numbers), Future[Any]()
        self._asked[number] = future
        self._send(Ask(number=number, name=name, args=args))
        return future.result()

    def _listen(self) -> None:
        while True:
            try:
                message = self._link.recv()
            except (EOFError, OSError):
                os._exit(1)  # the agent is gone, and with it the task's run
            match message:
                case Run():
                    self._runs.put(message)
                case Answer(number=number, value=value, error=error):
                    future = self._asked.pop(number)
                    future.set_result(value) if error is None else future.set_exception(error)
                case Command.STOP:
                    if self._runner is not None:
                        self._send(Stopped(status=self._told(self._runner.status())))
                case Command.DUMP_STACKS:
                    self._dump_stacks()
                case Command() | WorkerAddresses():
                    self._handle(message)

    def _handle(self, message: TaskMessage) -> None:
        with self._commanding:
            if self._early is not None:
                self._early.append(message)
            elif self._runner is not None:
                self._runner.handle(message)

    def _handle_early(self) -> None:
        with self._commanding:
            early, self._early = self._early or [], None
        for message in early:
            self._handle(message)

    def _push(self) -> None:
        runner, begun_at_s = self._runner, time.monotonic()
        assert runner is not None
        while not self._has_ended:
            if self._is_profile_asked:
                self._is_profile_asked = False
                runner.handle(Command.PROFILE)
            self._send(self._told(runner.status()))
            is_quick = time.monotonic() - begun_at_s < _QUICK_FOR_S
            time.sleep(_QUICK_STATUS_INTERVAL_S if is_quick else STATUS_INTERVAL_S)

    def _told(self, status: TaskStatus) -> TaskStatus:
        """Returns a status with what is known here."""
        place = self._place if self._placed_after == (status.step, status.beats) else None
        return dataclasses.replace(
            status,
            place=place,
            collective=self._standing.located(status.collective),
            leaving=self._leaving,
            peak_memory_bytes=peak_memory_bytes(),
        )

    def _dump_stacks(self) -> None:
        # In this order: what runs in between changes.
        self._place = place_in_code()
        if self._runner is not None:
            status = self._runner.status()
            self._placed_after = status.step, status.beats
        os.write(2, dump_stacks().encode())

    def _note_sigterm(self, *_: object) -> None:
        self._leaving = "SIGTERM"
        # Past sys.stdout, in the middle of whose write the signal may have come.
        os.write(
            1, f"raydist: {self._begin.task} got SIGTERM; it continues until the run has saved\n".encode()
        )

    def _note_profile(self, *_: object) -> None:
        # No more, and nothing with a lock, which the code that the signal interrupts may hold.
        self._is_profile_asked = True

    def _describe(self, error: BaseException, kind: FailureKind) -> TaskFailure:
        return describe_failure(
            self._begin.task, error, kind=kind, runner=self._begin.runner, secrets=self._secrets
        )

    def _send(self, message: object) -> None:
        with self._sending, contextlib.suppress(OSError):  # the agent is gone, which `_listen` sees
            self._link.send(message)


class _Lease:
    """The port that the agent holds; implements `raydist.task.Lease`."""

    def __init__(self, task: _Task, port: int, *, index: int) -> None:
        self._task = task
        self._index = index
        self.port = port

    def another(self) -> _Lease:
        port, index = self._task.ask("another_port")
        return _Lease(self._task, port, index=index)

    def close(self) -> None:
        self._task.ask("release_port", self._index)


class _Parcels:
    """What tasks leave for each other; implements data.shared.Parcels."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def put(self, key: str, content: bytes) -> None:
        self._task.ask("parcels.put", key, content)

    def get(self, key: str) -> bytes:
        return bytes(self._task.ask("parcels.get", key))

    def claim(self, key: str) -> int:
        return int(self._task.ask("parcels.claim", key))


def _loaded(datasets: bytes) -> Mapping[str, Any]:
    """Returns the task's shares of datasets, for which this process joins the run's Ray."""
    if not datasets:
        return {}
    import ray

    ray.init()
    shares: Mapping[str, Any] = pickle.loads(datasets)
    return shares
