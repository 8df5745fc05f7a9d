"""TaskActor: one Ray actor that is one TensorFlow task. Thin: training itself is the runner's."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

import ray

from raydist.errors import RaydistError, StorageError
from raydist.planning.assignment import TaskAssignment
from raydist.planning.environment import Changes, assignment_environment, static_environment
from raydist.runtime.host.address import join_address, split_address
from raydist.runtime.host.firewall.fence import set_fence
from raydist.runtime.host.firewall.rules import advice
from raydist.runtime.host.hardware import peak_memory_bytes, read_machine
from raydist.runtime.host.log_capture import LogCapture
from raydist.runtime.host.oom import OomCounter
from raydist.runtime.host.post_mortem import EXIT_MARK
from raydist.runtime.host.scratch import Scratch
from raydist.runtime.host.software.packages import package_versions
from raydist.runtime.host.software.versions import installed_versions
from raydist.runtime.host.task_files import TaskFiles
from raydist.runtime.task.code_archive import unpack_for_task
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.parcels import RayParcels, find_mailbox
from raydist.runtime.task.ports import PortLease
from raydist.runtime.task.runner import TaskRunner, load_runner
from raydist.runtime.task.stacks import dump_stacks, place_in_code
from raydist.spec.status import CodePlace, Command, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.spec.text.code_copies import as_submitted
from raydist.storage.files.job_secrets import secrets_of
from raydist.storage.files.redaction import Secrets

logger = logging.getLogger(__name__)

_exit_now = os._exit
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
# A dead process gives its port up before Ray reports its death, but for children that hold it too.
_PORT_TIMEOUT_S = 2.0


class TaskActor:
    """The methods are called in this order, and run one after the other in the process's main thread.

    A busy plain actor cannot be called, so while `run` trains a thread pushes the status to the
    mailbox and takes commands from it.
    """

    def __init__(self) -> None:
        self._host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._address: str | None = None
        self._runner: TaskRunner | None = None
        self._failure: TaskFailure | None = None
        self._leaving: str | None = None
        self._place: CodePlace | None = None
        self._placed_after = (0, 0)
        self._memory_limit_bytes: int | None = None
        self._is_profile_asked = False
        self._secrets = Secrets()
        self._notes: tuple[str, ...] = ()
        self._files: TaskFiles | None = None

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
        # `raydist stacks` sends it. In C, so that also a process shows its stacks that holds Python's lock.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        # `raydist profile` sends it. A system call of TensorFlow's or of the job's is not interrupted by it.
        signal.signal(signal.SIGUSR2, self._note_profile)
        signal.siginterrupt(signal.SIGUSR2, False)
        _note_exits()
        threading.Thread(target=self._end_with_node, name="raydist-node", daemon=True).start()
        try:
            self._lease = self._lease_port()
            self._check_storage()
        except BaseException:
            # The group, which does not get to know the folder, could delete it on its own host only.
            self._scratch.remove()
            raise
        self._address = join_address(self._host, self._lease.port)
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
        """Imports the runner, and with it TensorFlow; what goes wrong is reported by `run`."""
        if not self._is_in_place:
            return
        try:
            runner = load_runner(self._setup.runner)(self._setup.task, self._host)
            runner.warm_up()
            self._runner = runner
        except BaseException as error:
            # A process border: TensorFlow's import can fail in any way on a broken host.
            self._failure = self._describe(error, FailureKind.START)

    def run(self, assignment: TaskAssignment, code: bytes | None, mailbox_name: str) -> TaskStatus:
        """Trains; returns the terminal status, and raises nothing that user code can raise."""
        if self._address is None:
            self.linger()  # this was asked for before it was known that `hello` fails
        threading.Thread(target=self._talk, args=(mailbox_name,), name="raydist-mailbox", daemon=True).start()
        self._capture.start_uploading()
        if not self._is_in_place:
            self.linger()  # its peers cannot reach it here, but it shows that there is room
        assignment = dataclasses.replace(assignment, parcels=RayParcels(mailbox_name))
        status = self._terminal_status(assignment, code)
        problem = self._capture.flush()
        lost = () if problem is None else (f"the end of {self._setup.task}'s log is lost: {problem}",)
        return self._sent(status, *lost)

    def linger(self) -> NoReturn:
        """Never returns: its caller learns of the process's death by it."""
        while True:
            threading.Event().wait()

    def _terminal_status(self, assignment: TaskAssignment, code: bytes | None) -> TaskStatus:
        if self._runner is None:
            return self._own_status()
        try:
            self._secrets = secrets_of(assignment.job)
            _apply(assignment_environment(assignment))
            files = TaskFiles(self._scratch.path, self._setup.log, is_chief=assignment.is_chief)
            code_path = None if code is None else self._place_code(code)
            if code_path is not None:
                files.watch_working_folder(code_path)
            self._files = files
            assignment = dataclasses.replace(assignment, files=files)
            if assignment.address is not None:  # an evaluator may be at another one than its predecessor
                assignment = dataclasses.replace(assignment, address=self._address)
            if assignment.fenced_in is not None:
                self._lease.guarded(functools.partial(self._fence, assignment))
            return self._runner.run(assignment, code_path, self._lease)
        except BaseException as error:
            # A process border: whatever a runner lets through becomes a status.
            kind = FailureKind.STORAGE if isinstance(error, StorageError) else FailureKind.USER
            self._failure = self._describe(error, kind)
            self._runner = None
            return self._own_status()

    def _fence(self, assignment: TaskAssignment, port: int) -> None:
        hosts = assignment.fenced_in or ()
        if set_fence(self._scratch.path, port, hosts=hosts):
            print(f"raydist: only {', '.join(hosts)} may reach port {port} of {self._setup.task}", flush=True)
            return
        known = [address for _, addresses in assignment.cluster_spec.jobs for address in addresses]
        ports = {split_address(address)[1] for address in known}
        # The same sentence from all tasks, so that it is shown once.
        sentence = advice(ports=ports or {port}, hosts=hosts)
        self._notes = tuple(dict.fromkeys([*self._notes, sentence]))

    def _note_sigterm(self, *_: object) -> None:
        self._leaving = "SIGTERM"
        # Past sys.stdout, in the middle of whose write the signal may have come.
        os.write(
            1, f"raydist: {self._setup.task} got SIGTERM; it continues until the run has saved\n".encode()
        )

    def _note_profile(self, *_: object) -> None:
        # No more, and nothing with a lock, which the code that the signal interrupts may hold.
        self._is_profile_asked = True

    def _place_code(self, code: bytes) -> Path:
        path = self._scratch.code_path
        unpack_for_task(code, path, host=self._host)
        sys.path.insert(0, str(path))
        importlib.invalidate_caches()
        # Files that lie beside the job file are found by their relative names on every host.
        os.chdir(path)
        return path

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
            if self._is_profile_asked:
                self._is_profile_asked = False
                self._take(Command.PROFILE)
            for command in commands:
                self._take(command)
            if Command.STOP in commands:
                self._store_rest()
                self._clean_up()
                mailbox.depart.remote(self._status())
                time.sleep(_KILL_GRACE_S)
                _exit_now(0)

    def _end_with_node(self) -> None:
        """Ends this process once Ray's daemon on this host, which has started it, is gone.

        Ray ends it too, after a second, but then its files would stay.
        """
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        print(f"raydist: Ray's daemon on this host is gone, and {self._setup.task} ends", flush=True)
        self._exit()

    def _take(self, command: Command) -> None:
        runner = self._runner
        match command:
            case Command.STOP:
                pass  # once all that came with it is done
            case Command.DUMP_STACKS:
                self._dump_stacks()
            case _ if runner is not None:
                runner.handle(command)

    def _store_rest(self) -> None:
        """Stores the files that the job has written; what it gets no time for is salvaged."""
        if self._files is not None and (sentence := self._files.store_rest()) is not None:
            self._notes = tuple(dict.fromkeys([*self._notes, sentence]))

    def _dump_stacks(self) -> None:
        # In this order: what runs meanwhile changes.
        self._place, self._placed_after = place_in_code(), self._reached()
        os.write(2, dump_stacks().encode())

    def _reached(self) -> tuple[int, int]:
        """Returns what grows as long as the task goes on."""
        status = self._own_status() if self._runner is None else self._runner.status()
        return status.step, status.beats

    def _clean_up(self) -> None:
        """Leaves nothing on this host but the process, which the group kills.

        Ray would report a process that ends by itself as a crash. The main thread is not waited
        for: it may hang in a collective.
        """
        self._capture.flush()
        self._scratch.remove()
        _kill_children()

    def _exit(self) -> NoReturn:
        # Storage may be cut off as well, and training must not go on until that is found out.
        threading.Timer(_EXIT_S, _exit_now, (1,)).start()
        try:
            self._clean_up()
        finally:
            _exit_now(1)

    def _status(self) -> TaskStatus:
        return self._sent(self._own_status() if self._runner is None else self._runner.status())

    def _own_status(self) -> TaskStatus:
        """Returns the status of a task without a runner: before it has one, or because that has failed."""
        return TaskStatus(
            task=self._setup.task,
            state=TaskState.FAILED if self._failure else TaskState.STARTING,
            pid=os.getpid(),
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
            leaving=self._leaving,
            place=self._place if self._placed_after == (status.step, status.beats) else None,
            notes=tuple(map(as_submitted, (*status.notes, *self._notes, *notes))),
            failure=failure and _as_submitted(failure),
            peak_memory_bytes=peak_memory_bytes(),
            memory_limit_bytes=self._memory_limit_bytes,
        )

    def _describe(self, error: BaseException, kind: FailureKind) -> TaskFailure:
        text = self._secrets.hide("".join(traceback.format_exception(error)))
        logger.error("%s: %s failed\n%s", self._setup.task, self._setup.runner, text)
        return TaskFailure(
            task=self._setup.task,
            kind=kind,
            error_type=type(error).__name__,
            message=self._secrets.hide(f"{error}") or type(error).__name__,
            traceback=None if isinstance(error, RaydistError) else text,
            at_s=time.time(),
        )


def _as_submitted(failure: TaskFailure) -> TaskFailure:
    return dataclasses.replace(
        failure,
        message=as_submitted(failure.message),
        traceback=failure.traceback and as_submitted(failure.traceback),
    )


def _note_exits() -> None:
    """Has `os._exit` say so in the log: Ray's account of it is that of a crash."""
    pid = os.getpid()

    def noted(status: int) -> NoReturn:
        if os.getpid() == pid:  # every forked child ends by it
            os.write(2, f"\n{EXIT_MARK}{status}\n".encode())
        _exit_now(status)

    os._exit = noted


def _push_interval_s(status: TaskStatus) -> float:
    is_awaited = status.incarnation > 0 and status.state is TaskState.STARTING
    return _QUICK_PUSH_INTERVAL_S if is_awaited else PUSH_INTERVAL_S


def _apply(changes: Changes) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _kill_children() -> None:
    """Kills what user code has started and left running, such as data loader processes."""
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
