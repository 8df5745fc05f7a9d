"""TaskProcess: the process that a task trains in, as its agent sees it."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any

from raydist.outcome.status import Command, TaskFailure, TaskMessage, TaskStatus
from raydist.runtime.host.salvage import wait_until_gone
from raydist.runtime.task.child import Answer, Ask, Begin, Ended, Run, Stopped
from raydist.runtime.task.fork_client import connect, import_path
from raydist.runtime.task.fork_server import Exited, Forked, ForkRequest, receive, send

_ATTEMPTS = 3
# What a process has said is read to the end once it is gone; its own children may hold the link open.
_LAST_WORDS_S = 1.0
# From a kill to the end of a process, which may have much memory to give back.
_DEATH_S = 5.0


class ProcessDiedError(Exception):
    """The process has ended, and has not said how the task has.

    Attributes:
      code: Its exit code, or minus the signal that killed it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the task's process ended with {code}")
        self.code = code


class TaskProcess:
    """Starts a task's process, and talks to it. Every method may be called from any thread.

    Attributes:
      pid: None until it is forked.
      problem: Why it imports by itself what its server should have; None if it does not.
      status: The newest status before the last, which `wait` returns; None before the first.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        environ: Mapping[str, str],
        held: Any,
        keep_warm_s: float,
        hold: socket.socket | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Asks for the process, and returns at once.

        Args:
          environ: Its whole environment.
          held: Has the methods that the process may call, see `child.Ask`.
          keep_warm_s: How long its server stays after it, if no other process needs it.
          hold: A connection that keeps the server until then, and is closed; None where none does.
          on_change: Called whenever there is something new to be read here.
        """
        self.pid: int | None = None
        self.problem: str | None = None
        self.status: TaskStatus | None = None
        self._held = held
        self._on_change = on_change
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._code: int | None = None
        self._outcome: TaskStatus | TaskFailure | None = None
        self._has_said_all = False
        self._is_killed = False
        own, others = socket.socketpair()
        self._link = Connection(own.detach())
        self._link.send(begin)
        request = ForkRequest(
            title=str(begin.task),
            environ=dict(environ),
            sys_path=import_path(),
            keep_warm_s=keep_warm_s,
            oom_score_adj=Path("/proc/self/oom_score_adj").read_text(),
            num_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._server: socket.socket | None = None
        self._hold = hold
        threading.Thread(
            target=self._start, args=(begin.runner, request, others), name="raydist-fork", daemon=True
        ).start()
        threading.Thread(target=self._listen, name="raydist-link", daemon=True).start()

    def send(self, message: Run | Answer | TaskMessage) -> None:
        """Sends what the process is to do, or has asked for; it gets that as soon as it is there."""
        with self._sending, contextlib.suppress(OSError):  # it is gone, which its code says
            self._link.send(message)

    def wait(self) -> TaskStatus | TaskFailure:
        """Waits for the task's last status, or for what has failed without one, and returns it.

        Raises:
          ProcessDiedError: It has died.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None or self._code is not None)
            self._changed.wait_for(lambda: self._outcome is not None or self._has_said_all, _LAST_WORDS_S)
            if self._outcome is None:
                assert self._code is not None
                raise ProcessDiedError(self._code)
            return self._outcome

    @property
    def has_died(self) -> bool:
        """Whether it has ended by itself."""
        return self._code is not None and not self._is_killed

    def stop(self, *, timeout_s: float) -> None:
        """Has the process do what it was told before, and say how it stands; then kills it."""
        if self.status is not None and not isinstance(self._outcome, TaskStatus):
            self.send(Command.STOP)
            with self._changed:
                self._changed.wait_for(lambda: self._has_said_all, timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kills the process, and all that it has started, and waits for its end. Idempotent."""
        with self._changed:
            self._is_killed = True
            if self._server is not None:
                with contextlib.suppress(OSError):
                    self._server.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(lambda: self._code is not None, _DEATH_S)

    def _note(self, **found: Any) -> None:
        with self._changed:
            for name, value in found.items():
                setattr(self, name, value)
            self._changed.notify_all()
        self._on_change()

    def _start(self, runner: str, request: ForkRequest, link: socket.socket) -> None:
        try:
            with link:
                forked = self._fork(runner, request, link)
        except (OSError, EOFError, subprocess.CalledProcessError) as error:
            if not self._is_killed:
                print(f"raydist: no process could be forked: {type(error).__name__}: {error}", flush=True)
            self._note(_code=1)
            return
        finally:
            if self._hold is not None:
                self._hold.close()
        self._note(pid=forked.pid, problem=forked.problem)
        assert self._server is not None
        try:
            exited, _ = receive(self._server)
            assert isinstance(exited, Exited)
        except (OSError, EOFError):  # `kill`, or the death of the server, which is that of its processes
            exited = Exited(code=-signal.SIGKILL)
            wait_until_gone(forked.pid)
        with self._changed:
            self._server.close()
            self._server = None
        self._note(_code=exited.code)

    def _fork(self, runner: str, request: ForkRequest, link: socket.socket) -> Forked:
        for left in reversed(range(_ATTEMPTS)):
            server = connect(runner, request.environ)
            try:
                with self._changed:
                    if self._is_killed:
                        raise EOFError
                    self._server = server
                send(server, request, [link.fileno(), 1, 2])
                forked, _ = receive(server)
            except (OSError, EOFError):
                server.close()
                if not left or self._is_killed:
                    raise
                continue  # it has just ended, as nobody had asked it for long
            assert isinstance(forked, Forked)
            return forked
        raise AssertionError("unreachable")

    def _listen(self) -> None:
        while True:
            try:
                message = self._link.recv()
            except (EOFError, OSError):
                with self._sending:
                    self._link.close()
                self._note(_has_said_all=True)
                return
            match message:
                case TaskStatus() if not message.state.is_terminal:  # else `Ended` follows, for `wait`
                    self._note(status=message)
                case Ended(outcome=outcome):
                    self._note(_outcome=outcome)
                case Stopped(status=status):
                    self._note(status=status, _has_said_all=True)
                case Ask():
                    threading.Thread(
                        target=self._answer, args=(message,), name="raydist-ask", daemon=True
                    ).start()

    def _answer(self, ask: Ask) -> None:
        try:
            answer = Answer(number=ask.number, value=attrgetter(ask.name)(self._held)(*ask.args))
        except Exception as error:  # which the process raises
            answer = Answer(number=ask.number, error=error)
        self.send(answer)
