"""Task runners that never import TensorFlow, for tests of the runtime with real actors."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from raydist.outcome.status import Command, FailureKind, TaskFailure, TaskState, TaskStatus
from raydist.planning.assignment import TaskAssignment
from raydist.runtime.task.ports import PortLease
from raydist.spec.tasks import TaskId


class CountingRunner:
    """Counts `steps` (a param) of 10 ms; the task `fail_in` does what `how` says at step 3.

    `hows` says it for each of several tasks. It is one of: raise (reported as the user's), leak (raised
    out of the runner), exit, native_exit, sigkill, sigterm, segfault, abort, hang.
    """

    def __init__(self, task: TaskId, host: str) -> None:
        self._task = task
        self._host = host
        self._state = TaskState.STARTING
        self._step = 0
        self._failure: TaskFailure | None = None
        self._notes: list[str] = []

    def warm_up(self) -> None:
        print(f"{self._task} warms up")

    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: PortLease) -> TaskStatus:
        params = assignment.job.params
        self._state = TaskState.RUNNING
        self._notes += [f"TF_CONFIG={os.environ.get('TF_CONFIG')}", f"main={_is_main_thread()}"]
        self._notes += [f"port={lease.port}", f"cwd={os.getcwd()}", f"first_path={sys.path[0]}"]
        lease.close()
        self._notes += [f"{name}={os.environ.get(name)}" for name in params.get("shows", ())]
        for module in params.get("imports", ()):
            self._notes.append(f"{module}={importlib.import_module(module).VALUE}")
        if "child" in params:
            self._notes.append(f"child={subprocess.Popen(params['child'].split()).pid}")
        try:
            self._count(params, assignment)
        except ValueError as error:
            self._state = TaskState.FAILED
            self._failure = self._describe(error)
        else:
            self._state = TaskState.FINISHED
        return self.status()

    def status(self) -> TaskStatus:
        return TaskStatus(
            task=self._task,
            state=self._state,
            pid=os.getpid(),
            host=self._host,
            step=self._step,
            metrics={"loss": 1.0 / (1 + self._step)},
            failure=self._failure,
            notes=tuple(self._notes),
            at_s=time.time(),
        )

    def handle(self, command: Command) -> None:
        self._notes.append(f"command={command.value}")

    def _count(self, params: dict, assignment: TaskAssignment) -> None:
        for step in range(params.get("steps", 3)):
            self._step = step
            print(f"{self._task} step {step}", flush=True)
            os.write(2, f"{self._task} native {step}\n".encode())
            hows = params.get("hows") or {params.get("fail_in"): params.get("how")}
            if step == params.get("fail_at", 3) and str(self._task) in hows:
                _FAILURES[hows[str(self._task)]]()
            time.sleep(params.get("step_s", 0.01))
        self._step = params.get("steps", 3)

    def _describe(self, error: BaseException) -> TaskFailure:
        return TaskFailure(
            task=self._task,
            kind=FailureKind.USER,
            error_type=type(error).__name__,
            message=str(error),
            traceback=traceback.format_exc(),
            step=self._step,
            at_s=time.time(),
        )


class IdlingRunner(CountingRunner):
    """Counts a step each half second, and prints nothing: of which a machine carries many."""

    def _count(self, params: dict, assignment: TaskAssignment) -> None:
        for step in range(params["steps"]):
            self._step = step
            time.sleep(0.5)


class ReadingRunner(CountingRunner):
    """Counts the rows of its share of the dataset `train` in two passes; notes those of the second."""

    def _count(self, params: dict, assignment: TaskAssignment) -> None:
        share = assignment.datasets["train"]
        for _ in range(2):
            ids = [int(each) for batch in share.iter_batches(batch_size=4) for each in batch["id"]]
            self._step += len(ids)
        self._notes.append(f"ids={ids}")
        super()._count({**params, "steps": params.get("steps", self._step)}, assignment)


class WritingRunner(CountingRunner):
    """Writes into its output folder and its working folder before it counts."""

    def _count(self, params: dict, assignment: TaskAssignment) -> None:
        (assignment.files.output_dir / "log.csv").write_text(str(self._task))
        Path("model.keras").write_text(str(self._task))
        super()._count(params, assignment)


class ParcelRunner(CountingRunner):
    """worker/0 leaves a parcel for the others, which wait for it."""

    def _count(self, params: dict, assignment: TaskAssignment) -> None:
        if assignment.task.index == 0:
            assignment.parcels.put("key", b"secret of worker/0")
            assignment.parcels.put("large", bytes(1_000_000))
        else:
            self._notes.append(f"parcel={assignment.parcels.get('key').decode()}")
            self._notes.append(f"large={len(assignment.parcels.get('large'))}")
        self._notes.append(f"claims={[assignment.parcels.claim('work') for _ in range(3)]}")
        super()._count(params, assignment)


class TwoPortsRunner(CountingRunner):
    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: PortLease) -> TaskStatus:
        lease.another()
        raise AssertionError("unreachable")


class BrokenImportRunner(CountingRunner):
    """As on a host whose TensorFlow does not load."""

    def warm_up(self) -> None:
        raise ImportError("libcudart.so.12: cannot open shared object file")


class DeadWarmUpRunner(CountingRunner):
    """As a native crash in TensorFlow's import."""

    def warm_up(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class SlowWarmUpRunner(CountingRunner):
    def warm_up(self) -> None:
        time.sleep(60)


class SlowToTrainRunner(CountingRunner):
    """Starts for a second, as a server or a coordinator does."""

    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: PortLease) -> TaskStatus:
        time.sleep(1.0)
        return super().run(assignment, code_dir, lease)


class SecondIncarnationDiesRunner(CountingRunner):
    """Of each task's processes the second dies as it starts; they count in the folder `incarnations`."""

    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: PortLease) -> TaskStatus:
        incarnations = Path(assignment.job.params["incarnations"], self._task.path_name)
        with incarnations.open("a") as counted:
            counted.write("x")
        if incarnations.stat().st_size == 2:
            _sigkill()
        return super().run(assignment, code_dir, lease)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _raise() -> None:
    raise ValueError("loss is not a number")


def _leak() -> None:
    raise RuntimeError("nobody caught this")


def _exit() -> None:
    os._exit(7)


def _sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _native_exit() -> None:
    ctypes.CDLL(None)._exit(5)


def _sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _hang() -> None:
    time.sleep(600)


def _hang_with_gil() -> None:
    # As TensorFlow's start-up barrier: no Python thread of the process runs.
    ctypes.PyDLL(None).sleep(600)


_FAILURES = {
    "raise": _raise,
    "leak": _leak,
    "exit": _exit,
    "sigkill": _sigkill,
    "sigterm": _sigterm,
    "segfault": _segfault,
    "abort": os.abort,
    "native_exit": _native_exit,
    "hang": _hang,
    "hang_with_gil": _hang_with_gil,
}
