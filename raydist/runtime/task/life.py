"""TaskLife: what one process of a task has on its host, from its folder and port to its last status."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raydist.errors import StorageError
from raydist.outcome.printed import Printed
from raydist.outcome.status import FailureKind, TaskFailure, TaskMessage, TaskState, TaskStatus
from raydist.planning.assignment import TaskAssignment
from raydist.private_folders import HOST_TMPDIR, host_tmpdir
from raydist.runtime.host.address import join_address, split_address
from raydist.runtime.host.firewall import advice, set_fence
from raydist.runtime.host.hardware import read_machine
from raydist.runtime.host.log_capture import LogCapture
from raydist.runtime.host.post_mortem import OomCounter, examine
from raydist.runtime.host.scratch import Scratch, spool_path
from raydist.runtime.host.software import installed_versions, package_versions
from raydist.runtime.host.task_files import TaskFiles
from raydist.runtime.task.child import Begin, Run
from raydist.runtime.task.code_archive import unpack_for_task
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.parcels import RayParcels
from raydist.runtime.task.ports import PortLease
from raydist.runtime.task.process import ProcessDiedError, TaskProcess
from raydist.runtime.task.runner import describe_failure
from raydist.runtime.task.script_tail import ScriptTail
from raydist.spec.quantities import write_bytes
from raydist.spec.secrecy import Secrets, secrets_of
from raydist.spec.text import as_submitted
from raydist.storage.kept_state import HandedState, StateMemory

# How long a process may take to say how it stands before it is killed.
_PATIENCE_S = 1.0
# A dead process gives its port up before its death is known, but for children that hold it too.
_PORT_TIMEOUT_S = 2.0


class TaskLife:
    """Every method may be called from any thread, `begin` first and `run` once at most."""

    def __init__(
        self, setup: TaskSetup, *, host: str, memory: StateMemory, on_change: Callable[[], None]
    ) -> None:
        """Takes what it is to be; `memory` is where its process keeps states."""
        self._setup = setup
        self._memory = memory
        self._host = host
        self._on_change = on_change
        self._process: TaskProcess | None = None
        self._address: str | None = None
        self._failure: TaskFailure | None = None
        self._last: TaskStatus | None = None
        self._is_ending = False
        self._has_ended = False
        self._ending = threading.Lock()
        self._secrets = Secrets()
        self._notes: tuple[str, ...] = ()
        self._machine = read_machine()
        self._oom: OomCounter | None = None
        self._memory_limit_bytes: int | None = None

    def begin(self, environ: Mapping[str, str], *, hold: socket.socket | None = None) -> None:
        """Takes what the process needs of the host, and has it forked; leaves nothing if that fails.

        Args:
          environ: Of the process, but for the folder of its temporary files.
          hold: As for TaskProcess, which gets it.

        Raises:
          ClusterError: The host cannot run it. StorageError: It does not see the run's storage.
        """
        self._scratch = Scratch.create(self._setup.scratch_name)
        self._capture = LogCapture(self._scratch.path, self._setup.log)
        self._tail = ScriptTail(spool_path(self._scratch.path), self._setup.task)
        self._held: _Held | None = None
        try:
            self._capture.redirect()
            lease = self._lease_port()
            self._held = _Held(lease)
            self._address = join_address(self._host, lease.port)
            if self._is_in_place:
                temporary = self._scratch.make_temporary_folder()
                # Its import continues alongside the rest.
                own = {HOST_TMPDIR: host_tmpdir(), "TMPDIR": str(temporary)}
                self._process = self._start({**environ, **own}, self._held, hold)
            self._check_storage()
        except BaseException:
            self._is_ending = True
            if self._process is not None:
                self._process.kill()
            self._release()
            raise
        self._oom = OomCounter.read()
        limits = (self._machine.memory_bytes, None if self._oom is None else self._oom.limit_bytes())
        self._memory_limit_bytes = min(filter(None, limits), default=None)

    def hello(self, *, node_id: str) -> Hello:
        """Returns what the run has to know of it."""
        assert self._address is not None
        return Hello(
            task=self._setup.task,
            address=self._address,
            pid=os.getpid(),
            host=self._host,
            node_id=node_id,
            scratch_path=self._scratch.path,
            versions=installed_versions(),
            host_name=socket.gethostname(),
            machine=self._machine,
            packages=package_versions() if self._setup.tells_packages else {},
        )

    def run(
        self, assignment: TaskAssignment, code: bytes | None, parcels: RayParcels, kept: bytes | None
    ) -> None:
        """Has the process train; `status` says what became of it.

        Args:
          kept: What the chief of the attempt before has kept in memory; None if nothing.
        """
        self._capture.start_uploading()
        if self._process is None:
            return  # its peers cannot reach it here, but it shows that there is room
        assert self._held is not None
        self._held.parcels = parcels
        try:
            self._process.send(self._prepared(assignment, code, kept))
        except BaseException as error:
            kind = FailureKind.STORAGE if isinstance(error, StorageError) else FailureKind.USER
            self._fail(
                describe_failure(
                    self._setup.task, error, kind=kind, runner=self._setup.runner, secrets=self._secrets
                )
            )

    def command(self, message: TaskMessage) -> None:
        """Passes a message to the process."""
        if self._process is not None:
            self._process.send(message)

    def status(self) -> TaskStatus:
        """Returns how the task stands."""
        process = self._process
        status = self._last or (None if process is None or self._failure is not None else process.status)
        status = status or self._own_status()
        notes = (*status.notes, *self._notes)
        if process is not None and process.problem is not None:
            notes += (f"each task of host {self._host} imports TensorFlow by itself: {process.problem}",)
        return dataclasses.replace(
            status,
            incarnation=self._setup.incarnation,
            notes=tuple(map(as_submitted, dict.fromkeys(notes))),
            failure=status.failure and _as_submitted(status.failure),
            memory_limit_bytes=self._memory_limit_bytes,
        )

    def printed(self, *, max_bytes: int, is_last: bool = False) -> tuple[Printed, ...]:
        """Returns what the script has printed since the last call; nothing of a train function.

        Args:
          max_bytes: How much of it is returned; lines beyond are counted.
          is_last: Whether its process has ended.
        """
        status = self._last or (None if self._process is None else self._process.status)
        if not max_bytes or status is None or status.output is None:
            return ()
        span = dataclasses.replace(status.output, is_over=status.output.is_over or is_last)
        return self._tail.read(span, max_bytes=max_bytes)

    def end(self, *, patience_s: float = _PATIENCE_S, max_bytes: int = 0) -> tuple[Printed, ...]:
        """Ends the process, stores what it has left, and leaves nothing on this host. Idempotent.

        Args:
          patience_s: How long the process may take to say how it stands before it is killed.
          max_bytes: How much of what the script has printed since `printed` is returned.
        """
        with self._ending:
            if self._has_ended:
                return ()
            self._is_ending = True
            has_died = self._process is not None and self._process.has_died
            if self._process is not None:
                self._process.stop(timeout_s=patience_s)
            self._capture.flush()
            files = TaskFiles.left_in(self._scratch.path, self._setup.log)
            sentence = None if files is None else files.store_rest()
            if sentence is not None and not has_died:  # else the next process writes it again, and says so
                self._note(sentence)
            printed = self.printed(max_bytes=max_bytes, is_last=True)
            self._release()
            self._has_ended = True
            return printed

    def _release(self) -> None:
        self._capture.close()
        if self._held is not None:
            self._held.close()
        self._scratch.remove()

    def _start(self, environ: Mapping[str, str], held: _Held, hold: socket.socket | None) -> TaskProcess:
        """Asks for the process, which is there in a moment, or once its server has imported."""
        setup = self._setup
        begin = Begin(
            task=setup.task,
            host=self._host,
            runner=setup.runner,
            scratch_path=self._scratch.path,
            log=setup.log,
            may_vanish=setup.may_vanish,
        )
        process = TaskProcess(
            begin,
            environ=environ,
            held=held,
            keep_warm_s=setup.keep_warm_s,
            hold=hold,
            on_change=self._on_change,
        )
        threading.Thread(target=self._follow, args=(process,), name="raydist-process", daemon=True).start()
        return process

    def _follow(self, process: TaskProcess) -> None:
        """Waits for the process's end, or its task's, and notes how that was."""
        try:
            ended = process.wait()
        except ProcessDiedError as error:
            if not self._is_ending:
                self._fail(self._describe_death(process, error.code))
            return
        problem = self._capture.flush()
        if problem is not None:
            self._note(f"the end of {self._setup.task}'s log is lost: {problem}")
        if isinstance(ended, TaskFailure):
            self._fail(ended)
            return
        self._last = ended
        self._on_change()

    def _fail(self, failure: TaskFailure) -> None:
        if self._held is not None:
            self._held.close()  # so that another process can have its port
        self._failure = failure
        self._on_change()

    def _describe_death(self, process: TaskProcess, code: int) -> TaskFailure:
        finding = examine(self._scratch.path, code=code, oom=self._oom)
        peak = None if process.status is None else process.status.peak_memory_bytes
        pid = "" if process.pid is None else f" {process.pid}"
        message = f"its process{pid} on {self._host} {finding.how}"
        if finding.is_out_of_memory and peak is not None:
            message += f"; its peak was {write_bytes(peak)}"
        return TaskFailure(
            task=self._setup.task,
            kind=FailureKind.LOST,
            error_type="ProcessDied",
            message=message,
            log_end=finding.log_end,
            at_s=time.time(),
            is_out_of_memory=finding.is_out_of_memory,
            peak_memory_bytes=peak,
        )

    def _lease_port(self) -> PortLease:
        setup = self._setup
        if setup.address is not None:
            host, port = split_address(setup.address)
            lease = PortLease.acquire_again(port, timeout_s=_PORT_TIMEOUT_S) if host == self._host else None
            if lease is not None:
                return lease
        return PortLease.acquire(setup.ports)

    def _check_storage(self) -> None:
        setup = self._setup
        # A process that takes the place of another one of this host is waited for, and was preceded by it.
        if setup.address is not None and split_address(setup.address)[0] == self._host:
            return
        if setup.proof is not None:
            # Imports pyarrow, of which nothing is lost: the log's upload needs it too.
            setup.proof.check(host=self._host)

    @property
    def _is_in_place(self) -> bool:
        """Whether it has got what it needs, at the address that its peers connect to or will learn."""
        return self._setup.may_move or self._setup.address in (None, self._address)

    def _prepared(self, assignment: TaskAssignment, code: bytes | None, kept: bytes | None) -> Run:
        assert self._held is not None
        self._secrets = secrets_of(assignment.job)
        code_path = unpack_for_task(code, self._scratch, host=self._host)
        if assignment.address is not None:  # an evaluator may be at another one than its predecessor
            assignment = dataclasses.replace(assignment, address=self._address)
        if assignment.fenced_in is not None:
            self._held.lease.guarded(functools.partial(self._fence, assignment))
        return Run(
            assignment=dataclasses.replace(assignment, datasets={}, proof=self._setup.proof),
            code_dir=code_path,
            port=self._held.lease.port,
            datasets=_pickled(assignment.datasets),
            kept=HandedState(memory=self._memory.paths, restored=self._written(kept)),
        )

    def _written(self, kept: bytes | None) -> Path | None:
        if kept is None:
            return None
        path = self._scratch.path / "kept"
        path.write_bytes(kept)
        return path

    def _fence(self, assignment: TaskAssignment, port: int) -> None:
        hosts = assignment.fenced_in or ()
        if set_fence(self._scratch.path, port, hosts=hosts):
            print(f"raydist: only {', '.join(hosts)} may reach port {port} of {self._setup.task}", flush=True)
            return
        known = [address for _, addresses in assignment.cluster_spec.jobs for address in addresses]
        ports = {split_address(address)[1] for address in known}
        # The same sentence from all tasks, so that it is shown once.
        self._note(advice(ports=ports or {port}, hosts=hosts))

    def _note(self, sentence: str) -> None:
        self._notes = tuple(dict.fromkeys([*self._notes, sentence]))

    def _own_status(self) -> TaskStatus:
        """Returns the status of a task whose process has sent none, or has failed since."""
        process = self._process
        known = None if process is None else process.status
        known = known or TaskStatus(
            task=self._setup.task,
            state=TaskState.STARTING,
            pid=(None if process is None else process.pid) or os.getpid(),
            host=self._host,
            at_s=time.time(),
        )
        if self._failure is None:
            return known
        failure = dataclasses.replace(self._failure, step=known.step)
        return dataclasses.replace(known, state=TaskState.FAILED, failure=failure, at_s=failure.at_s)


class _Held:
    """What the agent holds for the process: ports, and what tasks leave for each other; see `child.Ask`."""

    def __init__(self, lease: PortLease) -> None:
        self.lease = lease
        self.parcels: RayParcels | None = None
        self._leases = {0: lease}
        self._indices = itertools.count(1)

    def another_port(self) -> tuple[int, int]:
        """Returns one more port, and what `release_port` takes for it."""
        index, lease = next(self._indices), self.lease.another()
        self._leases[index] = lease
        return lease.port, index

    def release_port(self, index: int) -> None:
        self._leases[index].close()

    def close(self) -> None:
        """Gives all ports up. Idempotent."""
        for lease in list(self._leases.values()):
            lease.close()


def _as_submitted(failure: TaskFailure) -> TaskFailure:
    return dataclasses.replace(
        failure,
        message=as_submitted(failure.message),
        traceback=failure.traceback and as_submitted(failure.traceback),
    )


def _pickled(datasets: Mapping[str, Any]) -> bytes:
    """Returns a task's shares of datasets as only Ray can pickle them; nothing where there are none."""
    if not datasets:
        return b""
    import ray

    pickled: bytes = ray.cloudpickle.dumps(datasets)  # type: ignore[no-untyped-call]
    return pickled
