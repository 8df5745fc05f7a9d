"""Real TensorFlow tasks without Ray: one bare process per task, with TF_CONFIG and leased ports.

Modelled on TensorFlow's multi_process_runner: output prefixed with the task, a time limit, stacks dumped
before the kill, and an error that carries what each process printed. But forked, see preloaded.py: tests/e2e
has tasks that import TensorFlow for themselves.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from raydist.spec.job import KerasFlavour
from raydist.storage.proof import StorageProof
from tests.support.preloaded import server_of

# TensorFlow 2.21's profiler corrupts the heap in about one of 500 profiles of two processes, without raydist
# as well (guide/page.md).
PROFILER_CRASH = re.compile(r"Fatal Python error: (?:Aborted|Segmentation fault).*profiler_v2\.py", re.DOTALL)
# For a machine that others are busy on.
PATIENCE = float(os.environ.get("RAYDIST_TEST_PATIENCE", "1"))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where a function runs: which strategy, on how many tasks, with which Keras.

    Attributes:
      devices: Logical CPU devices of each task.
      ps: Parameter servers, under parameter_server.
      evaluator: Whether there is an evaluator, under a strategy of several tasks.
    """

    strategy: str = "one_device"
    workers: int = 1
    devices: int | None = None
    keras: str = "3"
    ps: int = 0
    evaluator: bool = False
    shares: tuple[int, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order in which they are started; those that train come first."""
        evaluators = ["evaluator/0"] if self.evaluator else []
        if self.strategy != "parameter_server":
            num_tasks = self.workers if self.strategy == "multi_worker_mirrored" else 1
            return [*(f"worker/{index}" for index in range(num_tasks)), *evaluators]
        workers = [f"worker/{index}" for index in range(self.workers)]
        return ["chief/0", *evaluators, *workers, *(f"ps/{index}" for index in range(self.ps))]

    @property
    def finishing(self) -> int:
        """How many of `tasks`, from the first on, end by themselves."""
        return len(self.tasks) - (self.workers + self.ps if self.strategy == "parameter_server" else 0)

    def __str__(self) -> str:
        if self.strategy == "parameter_server":
            return f"{self.strategy}-{self.workers}+{self.ps}-keras{self.keras}"
        size = self.workers if self.strategy == "multi_worker_mirrored" else self.devices or 1
        return f"{self.strategy}-{size}-keras{self.keras}"


DISTRIBUTED = (
    Cluster(strategy="mirrored", devices=2),
    Cluster(strategy="multi_worker_mirrored", workers=2),
    Cluster(strategy="parameter_server", workers=1, ps=1),
)


@dataclass
class TaskProcess:
    """One running task; `arrays` and `values` are what its function returned, `printed` what it printed."""

    name: str
    request: dict[str, Any]
    environ: dict[str, str]
    folder: Path
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    process: Any = None  # None until it is started

    def start(self) -> None:
        """Starts the process, or another one in place of one that was killed."""
        server = server_of(KerasFlavour(self.request["keras"]))
        self.process = server.start(self.request, environ=self.environ, output=self.output)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def text(self) -> str:
        if not self.output.exists():  # its process has not begun
            return ""
        lines = self.output.read_text(errors="replace").splitlines()
        return "\n".join(f"[{self.name}] {line}" for line in lines[-100:])


def run_function(
    target: str, cluster: Cluster, *, timeout_s: float = 240, profiles: bool = False, **options: Any
) -> list[TaskProcess]:
    """Runs `module:function(ctx, **arguments)` in each task and returns the finished tasks.

    The function returns a dict; NumPy arrays come back in `arrays`, the rest (JSON) in `values`.

    Args:
      profiles: Whether the function uses TensorFlow's profiler: if that kills a task, all run once more.
      options: As of `started`, and the arguments.

    Raises:
      AssertionError: With all output, when a task fails or the time is up.
    """
    try:
        return _run_once(target, cluster, timeout_s=timeout_s * PATIENCE, **options)
    except AssertionError as error:
        if not profiles or PROFILER_CRASH.search(str(error)) is None:
            raise
    return _run_once(target, cluster, timeout_s=timeout_s * PATIENCE, **options)


def _run_once(target: str, cluster: Cluster, *, timeout_s: float, **options: Any) -> list[TaskProcess]:
    with started(target, cluster, **options) as tasks:
        deadline = time.monotonic() + timeout_s
        tasks = tasks[: cluster.finishing]
        for task in tasks:
            try:
                code = task.process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"{task.name} is not done after {timeout_s} s\n{_stacks(tasks)}"
                ) from None
            assert code == 0, f"{task.name} ended with {code}\n" + "\n".join(one.text() for one in tasks)
        for task in tasks:
            with np.load(task.folder / "arrays.npz") as arrays:
                task.arrays = dict(arrays)
            task.values = json.loads((task.folder / "values.json").read_text())
            task.printed = task.output.read_bytes().decode(errors="replace")  # with each \r of a bar
            assert OWN_ERROR not in task.printed, task.text()
    return tasks


# Begins the note on a check that failed by itself, and not by the user's code (checks/step_rules.py).
OWN_ERROR = "an error of raydist's own"


def wait_for_step(storage: Path, chief: TaskProcess) -> None:
    """Waits until metrics of a step are stored, which happens every second."""
    deadline = time.monotonic() + 60
    while not list(storage.rglob("metrics/*.parquet")):
        assert chief.process.poll() is None, chief.text()
        assert time.monotonic() < deadline, chief.text()
        time.sleep(0.05)


def run_in_turn(
    calls: Mapping[str, tuple[str, Mapping[str, Any]]], cluster: Cluster, **options: Any
) -> dict[str, list[TaskProcess]]:
    """Runs functions one after another in the same processes, whose start is most of what a short one costs.

    Args:
      calls: By name, `module:function` and its arguments. A function that breaks something comes last.
      options: As of `run_function`.

    Returns:
      By name the finished tasks, each with what that function returned.
    """
    tasks = run_function("tests.support.train_functions:in_turn", cluster, calls=dict(calls), **options)
    return {
        name: [replace(task, arrays=_of(name, task.arrays), values=_of(name, task.values)) for task in tasks]
        for name in calls
    }


def _of(name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{name}/"): one for key, one in results.items() if key.startswith(f"{name}/")}


@contextmanager
def started(
    target: str,
    cluster: Cluster,
    *,
    environ: Mapping[str, str] | None = None,
    storage: Path | str | None = None,
    attempt: int = 0,
    has_token: bool = False,
    kept_in: Path | None = None,
    late: Collection[str] = (),
    **arguments: Any,
) -> Iterator[list[TaskProcess]]:
    """Starts the tasks; kills those that are left at the end of the block.

    Args:
      late: Workers of parameter servers that the caller starts. The chief knows of them by `tell_workers`.
      kept_in: Where the tasks' folders are made, and stay; None for one that is removed at the end.
      has_token: Whether the run's folder has a token, which has to be there until the end.
    """
    with ExitStack() as stack:
        folder = kept_in or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raydist-test-")))
        leases = {name: stack.enter_context(_leased_port()) for name in cluster.tasks}
        addresses = {name: f"127.0.0.1:{lease.getsockname()[1]}" for name, lease in leases.items()}
        storage_uri = str(storage or folder / "storage")
        proof = StorageProof.leave(storage_uri=storage_uri, run="test") if has_token else None
        tasks = []
        for name in cluster.tasks:
            place = folder / name.replace("/", "-")
            place.mkdir()
            request = {
                "target": target,
                "strategy": cluster.strategy,
                "devices": cluster.devices,
                "keras": cluster.keras,
                "addresses": {one: at for one, at in addresses.items() if one not in late or one == name},
                "num_workers": cluster.workers,
                "shares": cluster.shares,
                "task": name,
                "folder": str(place),
                "storage": storage_uri,
                "attempt": attempt,
                "token": None if proof is None else proof.token,
                "arguments": arguments,
            }
            environment = {
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "1",
                "TMPDIR": str(folder),
                **(environ or {}),
            }
            task = TaskProcess(name=name, request=request, environ=environment, folder=place)
            tasks.append(task)
            if name not in late:
                task.start()
            stack.callback(lambda task=task: task.process and task.kill())
        yield tasks


def tell_workers(tasks: Sequence[TaskProcess], *names: str) -> None:
    """Tells the chief, which is the first of the tasks, that the run's workers are these from now on."""
    addresses = {
        int(one.name.partition("/")[2]): one.request["addresses"][one.name]
        for one in tasks
        if one.name in names
    }
    aside = tasks[0].folder.parent / "workers.new"
    aside.write_text(json.dumps(addresses))
    aside.rename(tasks[0].folder.parent / "workers.json")


def free_address() -> str:
    with _leased_port() as lease:
        return f"127.0.0.1:{lease.getsockname()[1]}"


@contextmanager
def _leased_port() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as lease:
        lease.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        lease.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        lease.bind(("::", 0))
        yield lease


def _stacks(tasks: list[TaskProcess]) -> str:
    for task in tasks:
        if task.process.poll() is None:
            task.process.send_signal(signal.SIGUSR1)  # faulthandler, see task_main
    time.sleep(1)
    return "\n".join(task.text() for task in tasks)
