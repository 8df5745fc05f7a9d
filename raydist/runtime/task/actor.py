"""TaskActor: the agent of one TensorFlow task, a Ray actor. It looks after the process that trains."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import ray

from raydist.outcome.printed import Printed
from raydist.outcome.status import TaskMessage, TaskStatus
from raydist.planning.assignment import TaskAssignment, apply_changes, static_environment
from raydist.planning.this_machine import usable_cores
from raydist.planning.threads import reserved_threads
from raydist.runtime.task.fork_client import hold
from raydist.runtime.task.fork_server import memory_files, receive, servers_here
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.life import TaskLife
from raydist.runtime.task.parcels import KeptParcels, RayParcels
from raydist.storage.kept_state import StateMemory

# A long poll, what follows it, and calls alongside them.
CONCURRENCY = 8
# After this a long poll answers without news.
_POLL_S = 10.0
# The run has given such a host up by then, and continues elsewhere: what it left behind must not train on.
_MAX_SILENCE_S = 30.0
_WATCH_S = 0.2
# How long a task whose run is gone may take to store its log and to clear up.
_EXIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class News:
    """How a task stands; `seq` goes into the next call.

    Attributes:
      status: None where it has nothing new to say.
      printed: What its script has printed since the last answer.
    """

    seq: int
    status: TaskStatus | None = None
    printed: tuple[Printed, ...] = ()


class _Statuses:
    """The statuses of a task, numbered. The newest is kept."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seq = self._pressing_seq = 0
        self._newest: TaskStatus | None = None

    def note(self, look: Callable[[], TaskStatus | None]) -> None:
        """Looks how the task stands, one thread at a time, and numbers what is new."""
        with self._changed:
            status = look()
            if status is None or status == self._newest:
                return
            self._seq += 1
            if self._newest is None or _without_progress(self._newest) != _without_progress(status):
                self._pressing_seq = self._seq
            self._newest = status
            self._changed.notify_all()

    def after(self, since: int, *, progress_every_s: float) -> News:
        """See `TaskActor.news`."""
        with self._changed:
            if self._changed.wait_for(lambda: self._seq > since, _POLL_S):
                rest_s = progress_every_s - time.time() % progress_every_s
                self._changed.wait_for(lambda: self._pressing_seq > since, rest_s)
            return News(seq=self._seq, status=self._newest if self._seq > since else None)


class TaskActor:
    """Looks after one process at a time, and is free to be called while that trains.

    Ray starts it, limits it and kills it. It ends with the node's daemon that has started it, and once its
    run has not called for long.
    """

    def __init__(self) -> None:
        self._host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._environ = dict(os.environ)
        self._node = os.getppid()
        self._life: TaskLife | None = None
        self._endings: list[threading.Thread] = []
        self._parcels = KeptParcels()
        self._memory = StateMemory()
        self._kept: bytes | None = None
        self._leaving: str | None = None
        self._may_vanish = False
        self._statuses = _Statuses()
        self._called_at_s = time.monotonic()
        self._max_printed_bytes = 0
        self._setup: TaskSetup | None = None
        self._server: socket.socket | None = None  # between two processes
        # Here, as this is called in the main thread. Ray's own handler ends the process.
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writing, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for watch in (self._watch_run, lambda: self._watch_signals(reading)):
            threading.Thread(target=watch, name="raydist-watch", daemon=True).start()

    def stand_by(self, setup: TaskSetup, is_awaited: bool = False) -> str:
        """Has this host begin to import what such a task needs; returns the node's id.

        Args:
          is_awaited: Whether it returns only once that is done.
        """
        self._hold_server(setup)
        if is_awaited and self._server is not None:
            with contextlib.suppress(EOFError, OSError):  # the server has ended
                receive(self._server)
        return str(ray.get_runtime_context().get_node_id())

    def begin(self, setup: TaskSetup) -> Hello:
        """Has a process forked, and returns what the others have to know of it.

        What the previous one left is stored in the background.

        Raises:
          ClusterError: The host cannot run it. StorageError: It does not see the run's storage.
        """
        if self._is_node_gone:
            self.linger()
        if self._life is not None:
            thread = threading.Thread(target=self._life.end, name="raydist-ending")
            self._endings.append(thread)
            thread.start()
        if setup.incarnation == 0:
            self._parcels = KeptParcels()
            # An attempt that has not come so far as to keep one leaves that of the attempt before.
            self._kept = self._memory.newest() or self._kept or _inherited(setup)
            self._memory.close()
            self._memory = StateMemory(setup.state_name(attempt=setup.log.attempt))
        life = TaskLife(setup, host=self._host, memory=self._memory, on_change=self._note_change)
        server, self._server = self._server, None
        try:
            life.begin(self._apply(setup), hold=server)
        except BaseException:
            if server is not None:
                server.close()
            raise
        self._setup = setup
        hello = life.hello(node_id=ray.get_runtime_context().get_node_id())
        self._called_at_s = time.monotonic()
        self._life, self._may_vanish = life, setup.may_vanish
        self._note_change()
        return hello

    def kept(self) -> bytes | None:
        """Returns the newest state that the process of an attempt before has kept in memory."""
        return self._kept

    def run(
        self,
        common: TaskAssignment,
        own: Mapping[str, Any],
        code: bytes | None,
        keeper: Any,
        kept: Sequence[Any],
    ) -> None:
        """Has the process train, and returns once it knows what to do.

        Args:
          common: One task's assignment, which all agents get. `own`: what this task's has instead.
          keeper: The agent that keeps the parcels.
          kept: The reference to what `kept` of the chief's agent returns, in a list, or an empty one.
        """
        if self._life is not None:
            assignment = dataclasses.replace(common, **own)
            self._life.run(assignment, code, RayParcels(keeper), _fetched(kept))

    def news(self, since: int, progress_every_s: float, max_printed_bytes: int) -> News:
        """Waits for a status after the one with that number, and returns the newest.

        Progress alone comes at whole multiples of `progress_every_s`, so that all tasks of a run wake its
        driver together; anything else at once.

        Args:
          max_printed_bytes: How much of what the script prints is returned; 0 where nobody watches.
        """
        self._called_at_s, self._max_printed_bytes = math.inf, max_printed_bytes
        news = self._statuses.after(since, progress_every_s=progress_every_s)
        if (life := self._life) is not None and max_printed_bytes:
            news = dataclasses.replace(news, printed=life.printed(max_bytes=max_printed_bytes))
        self._called_at_s = time.monotonic()
        return news

    def command(self, message: TaskMessage) -> None:
        """Passes a message to the process."""
        if self._life is not None:
            self._life.command(message)

    def end(self, for_another: bool) -> News:
        """Ends the process, stores what it has left and clears up; returns its last news, without a number.

        Args:
          for_another: Whether the agent is to have another process, for which its host stays prepared.
        """
        life, news = self._life, News(seq=0)
        if not for_another:
            self._memory.close()  # or the fork server would have it for another attempt
        elif self._setup is not None:
            self._hold_server(self._setup)
        if life is not None:
            printed = life.end(max_bytes=self._max_printed_bytes)
            news = News(seq=0, status=self._status_of(life), printed=printed)
            self._life = None
        for thread in self._endings:
            thread.join()
        self._endings.clear()
        return news

    def put_parcel(self, key: str, content: bytes) -> None:
        """Keeps what a task leaves for the others, until the next attempt."""
        self._parcels.put(key, content)

    def get_parcel(self, key: str) -> bytes | list[ray.ObjectRef[bytes]] | None:
        """Returns what a task has left, or a reference to it in a list; None if it has not yet."""
        return self._parcels.get(key)

    def claim_parcel(self, key: str) -> int:
        """Returns how often this was called for the key before in this attempt."""
        return self._parcels.claim(key)

    def linger(self) -> NoReturn:
        """Never returns: its caller learns of this process's death by it."""
        while True:
            threading.Event().wait()

    def _apply(self, setup: TaskSetup) -> Mapping[str, str]:
        """Gives this process the job's variables, for storage; returns the environment of the task's own."""
        changes = static_environment(
            keras=setup.keras,
            num_cpus=setup.resources.num_cpus,
            num_gpus=setup.resources.num_gpus,
            num_threads=_threads_of(setup),
            tpu_name=setup.tpu_name,
            given=setup.env,
            environ=self._environ,
        )
        apply_changes(changes, os.environ)
        context = ray.get_runtime_context()
        # A job that calls Ray by itself joins it as a driver.
        return {**os.environ, "RAY_ADDRESS": context.gcs_address, "RAY_NAMESPACE": context.namespace}

    def _hold_server(self, setup: TaskSetup) -> None:
        try:
            environ = self._apply(setup)
            self._server = self._server or hold(setup.runner, environ, keep_warm_s=setup.keep_warm_s)
        except (OSError, subprocess.CalledProcessError) as error:  # its task tells what comes of it
            print(f"raydist: nothing is imported ahead for {setup.task}: {error}", flush=True)

    def _status_of(self, life: TaskLife) -> TaskStatus:
        status = life.status()
        return dataclasses.replace(status, leaving=self._leaving or status.leaving)

    @property
    def _is_node_gone(self) -> bool:
        """Whether Ray's daemon on this host has ended, which this process is about to follow."""
        return os.getppid() != self._node

    def _note_change(self) -> None:
        def look() -> TaskStatus | None:
            life = self._life  # which another thread may end meanwhile
            # The process ends with Ray's daemon, too: what it says then is not what happened.
            return None if life is None or self._is_node_gone else self._status_of(life)

        self._statuses.note(look)

    def _watch_signals(self, fd: int) -> None:
        """Notes a SIGTERM: a host that is about to be taken away says so, to the process or here."""
        while True:
            if signal.SIGTERM not in os.read(fd, 1):
                continue
            if self._may_vanish:
                self._exit("got SIGTERM")
            self._leaving = "SIGTERM"
            self._note_change()

    def _watch_run(self) -> None:
        """Ends this process once Ray's daemon on this host is gone, or the run does not call any more.

        Ray ends it after a second, too, but then its files would stay.
        """
        while True:
            time.sleep(_WATCH_S)
            if self._is_node_gone:
                self._exit("ends, as Ray's daemon on this host is gone")
            if self._life is not None and time.monotonic() - self._called_at_s > _MAX_SILENCE_S:
                self._exit("is cut off from its run, and ends")

    def _exit(self, why: str) -> NoReturn:
        task = "a standby" if self._setup is None else self._setup.task
        print(f"raydist: {task} {why}", flush=True)
        # Storage may be cut off as well, and training must not continue until that is found out.
        threading.Timer(_EXIT_S, os._exit, (1,)).start()
        try:
            if self._life is not None:
                self._life.end(patience_s=0)  # Ray may end this process any moment, too
        finally:
            os._exit(1)


def _threads_of(setup: TaskSetup) -> int:
    """Returns TensorFlow's threads: those that were planned, as far as this host has the cores."""
    reserved = reserved_threads(setup.resources)
    # Ray may have been told of more CPUs than there are.
    return max(reserved, min(setup.num_threads or reserved, usable_cores()))


def _inherited(setup: TaskSetup) -> bytes | None:
    """Returns the state that the task's agent has left which died with the controller before; None if none.

    Of the attempt before alone: what is older may be what has failed since.
    """
    name = f"{setup.state_name(attempt=setup.log.attempt - 1)} "
    servers = servers_here() if setup.log.attempt > 0 else ()
    fds = [fd for server in servers for fd in memory_files(server, name)]
    if not fds:
        return None
    memory = StateMemory(fds=fds)
    try:
        return memory.newest()
    finally:
        memory.close()


def _fetched(kept: Sequence[Any]) -> bytes | None:
    try:
        content: bytes | None = ray.get(kept[0]) if kept else None
    except ray.exceptions.RayError as error:  # the chief's agent is lost, of which its own calls tell
        print(f"raydist: no state of the attempt before can be had: {error}", flush=True)
        return None
    return content


def _without_progress(status: TaskStatus) -> tuple[object, ...]:
    """Returns what the run acts on."""
    return (
        *(status.state, status.incarnation, status.first_step_at_s, status.checkpoint),
        *(status.leaving, status.is_joining, status.divides_data, status.place, status.notes, status.failure),
    )
