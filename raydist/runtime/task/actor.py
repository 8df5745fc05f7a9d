"""TaskActor: the agent of one TensorFlow task, a Ray actor. It looks after the process that trains."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import ray

from raydist.errors import StorageError
from raydist.planning.assignment import TaskAssignment
from raydist.planning.environment import Changes, static_environment
from raydist.runtime.host.address import join_address, split_address
from raydist.runtime.host.firewall.fence import set_fence
from raydist.runtime.host.firewall.rules import advice
from raydist.runtime.host.hardware import read_machine
from raydist.runtime.host.log_capture import LogCapture
from raydist.runtime.host.oom import OomCounter
from raydist.runtime.host.post_mortem import note_exit
from raydist.runtime.host.scratch import Scratch
from raydist.runtime.host.software.packages import package_versions
from raydist.runtime.host.software.versions import installed_versions
from raydist.runtime.task.child import Begin, Run
from raydist.runtime.task.code_archive import unpack_for_task
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.parcels import RayParcels, find_mailbox
from raydist.runtime.task.ports import PortLease
from raydist.runtime.task.process import ProcessDiedError, TaskProcess
from raydist.runtime.task.runner import describe_failure
from raydist.spec.status import Command, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.text.code_copies import as_submitted
from raydist.storage.files.job_secrets import secrets_of
from raydist.storage.files.redaction import Secrets

PUSH_INTERVAL_S = 0.5
# The run waits for the first status of a process that takes the place of a dead one.
_QUICK_PUSH_INTERVAL_S = 0.05
# Far more than an exchange takes: only a host that is cut off from the mailbox's gets here.
_EXCHANGE_TIMEOUT_S = 15.0
# The run has given such a host up by then, and goes on elsewhere: what it left behind must not train on.
_MAX_SILENT_EXCHANGES = 2
# The group kills a task that has obeyed STOP at once, if Ray is still there to do it.
_KILL_GRACE_S = 5.0
_PARENT_POLL_S = 0.2
# How long a task whose run is gone may take to store its log and to clear up.
_EXIT_S = 5.0
# How long a process that is asked to end may take to store what its job has written.
_STORE_S = 60.0
# A dead process gives its port up before Ray reports its death, but for children that hold it too.
_PORT_TIMEOUT_S = 2.0


class TaskActor:
    """The methods are called in this order, and run one after the other in the process's main thread.

    A busy plain actor cannot be called, so while `run` waits for the process that trains, a thread pushes the
    status to the mailbox and takes commands from it.
    """

    def __init__(self) -> None:
        self._host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._address: str | None = None
        self._process: TaskProcess | None = None
        self._failure: TaskFailure | None = None
        self._leaving: str | None = None
        self._is_ending = False
        self._node = os.getppid()
        self._memory_limit_bytes: int | None = None
        self._secrets = Secrets()
        self._notes: tuple[str, ...] = ()

    def hello(self, setup: TaskSetup) -> Hello:
        """Takes what the task needs of its host: environment, scratch folder, log, port and storage."""
        self._setup = setup
        # A host that is about to be taken away says so. Ray's own handler raises SystemExit in user code.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if setup.may_vanish else self._note_sigterm)
        _apply(
            static_environment(
                keras=setup.keras,
                num_cpus=setup.resources.num_cpus,
                num_gpus=setup.resources.num_gpus,
                tpu_name=setup.tpu_name,
                given=setup.env,
                environ=os.environ,
            )
        )
        self._scratch = Scratch.create(setup.scratch_name)
        self._scratch.take_temporary_files()
        self._capture = LogCapture(self._scratch.path, setup.log)
        self._capture.redirect()
        threading.Thread(target=self._end_with_node, name="raydist-node", daemon=True).start()
        try:
            self._lease = self._lease_port()
            self._address = join_address(self._host, self._lease.port)
            if self._is_in_place:
                self._process = self._start_process()  # its import goes on beside the rest
            self._check_storage()
        except BaseException:
            self._address = None
            if self._process is not None:
                self._process.kill()
            # The group, which does not get to know the folder, could delete it on its own host only.
            self._scratch.remove()
            raise
        machine, oom = read_machine(), OomCounter.read()
        limits = (machine.memory_bytes, None if oom is None else oom.limit_bytes())
        self._memory_limit_bytes = min(filter(None, limits), default=None)
        return Hello(
            task=setup.task,
            address=self._address,
            pid=os.getpid(),
            host=self._host,
            node_id=ray.get_runtime_context().get_node_id(),
            scratch_path=self._scratch.path,
            versions=installed_versions(),
            oom=oom,
            host_name=socket.gethostname(),
            machine=machine,
            packages=package_versions() if setup.tells_packages else {},
        )

    def _start_process(self) -> TaskProcess:
        """Asks for the process that trains, which is there in a moment, or once its server has imported."""
        setup = self._setup
        context = ray.get_runtime_context()
        # A job that calls Ray by itself joins it as a driver.
        of_ray = {"RAY_ADDRESS": context.gcs_address, "RAY_NAMESPACE": context.namespace}
        begin = Begin(
            task=setup.task,
            host=self._host,
            runner=setup.runner,
            scratch_path=self._scratch.path,
            log=setup.log,
            may_vanish=setup.may_vanish,
        )
        self._held = _Held(self._lease)
        environ = {**os.environ, **of_ray}
        return TaskProcess(begin, environ=environ, held=self._held, keep_warm_s=setup.keep_warm_s)

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
            # Imports pyarrow, of which nothing is lost: training needs it too.
            setup.proof.check(host=self._host)

    @property
    def _is_in_place(self) -> bool:
        """Whether it has got what it needs, at the address that its peers connect to."""
        return self._address is not None and self._setup.address in (None, self._address)

    def warm_up(self) -> None:
        """Waits until the process has imported TensorFlow; what goes wrong is reported by `run`."""
        if self._process is None:
            return
        try:
            self._process.wait_warm()
        except ProcessDiedError as error:
            self._end_as(error.code)
        if self._process.problem is not None:
            self._note(
                f"each task of host {self._host} imports TensorFlow by itself: {self._process.problem}"
            )

    def run(self, assignment: TaskAssignment, code: bytes | None, mailbox_name: str) -> TaskStatus:
        """Trains; returns the terminal status, and raises nothing that user code can raise."""
        if self._address is None:
            self.linger()  # this was asked for before it was known that `hello` fails
        threading.Thread(target=self._talk, args=(mailbox_name,), name="raydist-mailbox", daemon=True).start()
        self._capture.start_uploading()
        if self._process is None:
            self.linger()  # its peers cannot reach it here, but it shows that there is room
        self._held.parcels = RayParcels(mailbox_name)
        status = self._terminal_status(self._process, assignment, code)
        problem = self._capture.flush()
        lost = () if problem is None else (f"the end of {self._setup.task}'s log is lost: {problem}",)
        return self._sent(status, *lost)

    def linger(self) -> NoReturn:
        """Never returns: its caller learns of the process's death by it."""
        while True:
            threading.Event().wait()

    def _terminal_status(
        self, process: TaskProcess, assignment: TaskAssignment, code: bytes | None
    ) -> TaskStatus:
        try:
            self._secrets = secrets_of(assignment.job)
            code_path = None if code is None else self._scratch.code_path
            if code is not None and code_path is not None:
                unpack_for_task(code, code_path, host=self._host)
            if assignment.address is not None:  # an evaluator may be at another one than its predecessor
                assignment = dataclasses.replace(assignment, address=self._address)
            if assignment.fenced_in is not None:
                self._lease.guarded(functools.partial(self._fence, assignment))
            run = Run(
                assignment=dataclasses.replace(assignment, datasets={}),
                code_dir=code_path,
                port=self._lease.port,
                datasets=_pickled(assignment.datasets),
            )
        except BaseException as error:
            kind = FailureKind.STORAGE if isinstance(error, StorageError) else FailureKind.USER
            self._failure = describe_failure(
                self._setup.task, error, kind=kind, runner=self._setup.runner, secrets=self._secrets
            )
            return self._own_status()
        try:
            ended = process.run(run)
        except ProcessDiedError as error:
            self._end_as(error.code)
        if isinstance(ended, TaskStatus):
            return ended
        self._failure = ended
        return self._own_status()

    def _end_as(self, code: int) -> NoReturn:
        """Ends as the process has, for a signal by SIGKILL: Ray then tells the run that the task is lost."""
        if self._is_ending or os.getppid() != self._node:
            self.linger()  # it was killed here, or with Ray's daemon, after which another thread clears up
        note_exit(self._scratch.path, code)
        if code < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code)

    def _fence(self, assignment: TaskAssignment, port: int) -> None:
        hosts = assignment.fenced_in or ()
        if set_fence(self._scratch.path, port, hosts=hosts):
            print(f"raydist: only {', '.join(hosts)} may reach port {port} of {self._setup.task}", flush=True)
            return
        known = [address for _, addresses in assignment.cluster_spec.jobs for address in addresses]
        ports = {split_address(address)[1] for address in known}
        # The same sentence from all tasks, so that it is shown once.
        sentence = advice(ports=ports or {port}, hosts=hosts)
        self._note(sentence)

    def _note(self, sentence: str) -> None:
        self._notes = tuple(dict.fromkeys([*self._notes, sentence]))

    def _note_sigterm(self, *_: object) -> None:
        self._leaving = "SIGTERM"

    def _talk(self, mailbox_name: str) -> None:
        mailbox = find_mailbox(mailbox_name)
        num_silent = 0
        while True:
            try:
                status = self._status()
                exchange = mailbox.exchange.remote(status, wait_s=_push_interval_s(status))
                commands = ray.get(exchange, timeout=_EXCHANGE_TIMEOUT_S)
                num_silent = 0
            except ray.exceptions.GetTimeoutError:
                num_silent += 1
                if num_silent >= _MAX_SILENT_EXCHANGES:
                    print(f"raydist: {self._setup.task} is cut off from its run, and ends", flush=True)
                    self._exit()
                continue
            except ray.exceptions.RayError:
                # The mailbox lives as long as the run: without it this task is not needed any more.
                self._exit()
            for command in commands:
                if command is not Command.STOP and self._process is not None:
                    self._process.command(command)
            if Command.STOP in commands:  # once all that came with it is done
                self._store_rest()
                status = self._status()
                self._clean_up()
                mailbox.depart.remote(status)
                time.sleep(_KILL_GRACE_S)
                os._exit(0)

    def _end_with_node(self) -> None:
        """Ends this process once Ray's daemon on this host, which has started it, is gone.

        Ray ends it too, after a second, but then its files would stay.
        """
        while os.getppid() == self._node:
            time.sleep(_PARENT_POLL_S)
        print(f"raydist: Ray's daemon on this host is gone, and {self._setup.task} ends", flush=True)
        self._exit()

    def _store_rest(self) -> None:
        """Stores the files that the job has written; what it gets no time for is salvaged."""
        # Before its first status the process runs nothing of the job's, and may not even be forked.
        if self._process is None or self._process.status is None:
            return
        if (sentence := self._process.store_rest(timeout_s=_STORE_S)) is not None:
            self._note(sentence)

    def _clean_up(self) -> None:
        """Leaves nothing on this host but the agent, which the group kills.

        Ray would report an actor that ends by itself as a crash.
        """
        self._is_ending = True
        if self._process is not None:
            self._process.kill()
        self._capture.flush()
        self._scratch.remove()

    def _exit(self) -> NoReturn:
        # Storage may be cut off as well, and training must not go on until that is found out.
        threading.Timer(_EXIT_S, os._exit, (1,)).start()
        try:
            self._clean_up()
        finally:
            os._exit(1)

    def _status(self) -> TaskStatus:
        status = None if self._process is None or self._failure is not None else self._process.status
        return self._sent(self._own_status() if status is None else status)

    def _own_status(self) -> TaskStatus:
        """Returns the status of a task whose process has sent none."""
        pid = None if self._process is None else self._process.pid
        return TaskStatus(
            task=self._setup.task,
            state=TaskState.FAILED if self._failure else TaskState.STARTING,
            pid=pid or os.getpid(),
            host=self._host,
            failure=self._failure,
            at_s=time.time(),
        )

    def _sent(self, status: TaskStatus, *notes: str) -> TaskStatus:
        """Returns a status with what is known here, its texts with the job's files as the user knows them."""
        failure = status.failure
        return dataclasses.replace(
            status,
            incarnation=self._setup.incarnation,
            leaving=self._leaving or status.leaving,
            notes=tuple(map(as_submitted, (*status.notes, *self._notes, *notes))),
            failure=failure and _as_submitted(failure),
            memory_limit_bytes=self._memory_limit_bytes,
        )


class _Held:
    """What the agent holds for the process: ports, and what tasks leave for each other; see `child.Ask`."""

    def __init__(self, lease: PortLease) -> None:
        self.parcels: RayParcels | None = None
        self._leases = {0: lease}
        self._indices = itertools.count(1)

    def another_port(self) -> tuple[int, int]:
        """Returns one more port, and what `release_port` takes for it."""
        index, lease = next(self._indices), self._leases[0].another()
        self._leases[index] = lease
        return lease.port, index

    def release_port(self, index: int) -> None:
        self._leases[index].close()

    def put_parcel(self, key: str, content: bytes) -> None:
        assert self.parcels is not None
        self.parcels.put(key, content)

    def get_parcel(self, key: str) -> Any:
        assert self.parcels is not None
        return self.parcels.get(key)


def _as_submitted(failure: TaskFailure) -> TaskFailure:
    return dataclasses.replace(
        failure,
        message=as_submitted(failure.message),
        traceback=failure.traceback and as_submitted(failure.traceback),
    )


def _push_interval_s(status: TaskStatus) -> float:
    is_awaited = status.incarnation > 0 and status.state is TaskState.STARTING
    return _QUICK_PUSH_INTERVAL_S if is_awaited else PUSH_INTERVAL_S


def _pickled(datasets: Mapping[str, Any]) -> bytes:
    """Returns a task's shares of datasets as only Ray can pickle them; nothing where there are none."""
    pickled: bytes = ray.cloudpickle.dumps(datasets) if datasets else b""  # type: ignore[no-untyped-call]
    return pickled


def _apply(changes: Changes) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
