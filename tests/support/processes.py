"""Real TensorFlow tasks without Ray: one bare process per task, with TF_CONFIG and leased ports.

Modelled on TensorFlow's multi_process_runner: spawned, output prefixed with the task, a time limit,
stacks dumped before the kill, and an error that carries what each process printed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where a function runs: which strategy, on how many tasks, with which Keras.

    Attributes:
      devices: Logical CPU devices of each task.
    """

    strategy: str = "one_device"
    workers: int = 1
    devices: int | None = None
    keras: str = "3"

    def __str__(self) -> str:
        size = self.workers if self.strategy == "multi_worker_mirrored" else self.devices or 1
        return f"{self.strategy}-{size}-keras{self.keras}"


@dataclass
class TaskProcess:
    """One running task; `arrays` and `values` are what its function returned."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    folder: Path
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        lines = self.output.read_text(errors="replace").splitlines()
        return "\n".join(f"[{self.name}] {line}" for line in lines[-60:])


def run_function(
    target: str,
    cluster: Cluster,
    *,
    timeout_s: float = 240,
    environ: Mapping[str, str] | None = None,
    storage: Path | None = None,
    attempt: int = 0,
    **arguments: Any,
) -> list[TaskProcess]:
    """Runs `module:function(ctx, **arguments)` in each task and returns the finished tasks.

    The function returns a dict; NumPy arrays come back in `arrays`, the rest (JSON) in `values`.
    Raises AssertionError with all output when a task fails or the time is up.
    """
    with started(target, cluster, environ=environ, storage=storage, attempt=attempt, **arguments) as tasks:
        deadline = time.monotonic() + timeout_s
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
    return tasks


@contextmanager
def started(
    target: str,
    cluster: Cluster,
    *,
    environ: Mapping[str, str] | None = None,
    storage: Path | None = None,
    attempt: int = 0,
    **arguments: Any,
) -> Iterator[list[TaskProcess]]:
    """Starts the tasks; kills those that are left at the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raydist-test-")))
        num_tasks = cluster.workers if cluster.strategy == "multi_worker_mirrored" else 1
        leases = [stack.enter_context(_leased_port()) for _ in range(num_tasks)]
        addresses = [f"127.0.0.1:{lease.getsockname()[1]}" for lease in leases]
        tasks = []
        for index in range(num_tasks):
            request = {
                "target": target,
                "strategy": cluster.strategy,
                "devices": cluster.devices,
                "keras": cluster.keras,
                "addresses": addresses,
                "index": index,
                "folder": str(folder / str(index)),
                "storage": str(storage or folder / "storage"),
                "attempt": attempt,
                "arguments": arguments,
            }
            (folder / str(index)).mkdir()
            output = folder / str(index) / "output.txt"
            with output.open("wb") as sink:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.task_main", json.dumps(request)],
                    cwd=ROOT,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "TMPDIR": str(folder), **(environ or {})},
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                )
            task = TaskProcess(
                name=f"worker/{index}", process=process, output=output, folder=folder / str(index)
            )
            tasks.append(task)
            stack.callback(_kill, process)
        yield tasks


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


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
