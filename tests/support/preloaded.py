"""Processes that have imported TensorFlow already: the import is 4 s of each task's start.

A server for each Keras imports it once, with the environment that raydist gives to a task, and forks. What
it has imported, it has not used, so it has one thread, and a fork lacks none.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.planning.assignment import static_environment
from raydist.spec.job import KerasFlavour
from raydist.training.lazy_imports import KERAS_EXTRAS, executed_on_first_use, uncollected

ROOT = Path(__file__).parents[2]
_TICK_S = 0.02


class ForkedProcess:
    """A task's process, with as much of Popen as tests use."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Returns the code, negative for a signal, once the process has ended."""
        return self._server.code_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"task of pid {self.pid}", timeout or 0.0)
            time.sleep(_TICK_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """A process that forks; see `serve`."""

    def __init__(self, keras: KerasFlavour) -> None:
        changes = static_environment(keras=keras, num_cpus=1, num_gpus=0, environ=os.environ)
        # OpenBLAS and pyarrow's allocator would each start a thread, which a fork would not have.
        single = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        # Of the test that comes first, whose own processes alone shall keep their warnings to themselves.
        changes["PYTHONWARNINGS"] = None
        environ = {**os.environ, **changes, **single, "TF_CPP_MIN_LOG_LEVEL": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded", keras.value],
            cwd=ROOT,
            env={name: value for name, value in environ.items() if value is not None},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""
        self._codes: dict[int, int] = {}

    def start(self, request: dict[str, Any], *, environ: Mapping[str, str], output: Path) -> ForkedProcess:
        """Starts `task_main.main(request)` in a process that appends what it prints to `output`."""
        asked = {"request": request, "environ": dict(environ), "output": str(output)}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        while (pid := self._read(timeout_s=60)) is None:
            pass
        self._codes.pop(pid, None)  # of an earlier process
        return ForkedProcess(self, pid)

    def code_of(self, pid: int) -> int | None:
        self._read(timeout_s=0)
        return self._codes.get(pid)

    def _read(self, *, timeout_s: float) -> int | None:
        """Takes what the server says; returns the pid that it has started."""
        assert self._process.stdout is not None
        pid = None
        while select.select([self._process.stdout], [], [], timeout_s)[0]:
            timeout_s = 0
            content = os.read(self._process.stdout.fileno(), 65536)
            assert content, f"the server of tasks ended with {self._process.wait()}"
            *lines, self._unread = (self._unread + content).split(b"\n")
            for said in map(json.loads, lines):
                if "code" in said:
                    self._codes[said["pid"]] = said["code"]
                else:
                    pid = said["pid"]
        return pid

    def end(self) -> None:
        with self._process:
            self._process.stdin.close()


@functools.cache
def server_of(keras: KerasFlavour) -> Server:
    """Returns the server of this session's tasks with that Keras."""
    server = Server(keras)
    atexit.register(server.end)
    return server


def serve(keras: KerasFlavour) -> dict[str, Any]:
    """Forks a process for each line on standard input, and says on standard output when it has ended.

    Returns:
      The request, and that in the forked processes alone.
    """
    with uncollected(), executed_on_first_use(*KERAS_EXTRAS):  # as a task does
        for module in ("tensorflow", "raydist.training.session", "raydist.training.parameter_server.sources"):
            importlib.import_module(module)
        if keras is KerasFlavour.LEGACY:
            importlib.import_module("tf_keras")
    unread, pids = b"", set[int]()
    while True:
        ready, _, _ = select.select([0], [], [], _TICK_S)
        for pid in list(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                pids.remove(pid)
                _say(pid=pid, code=os.waitstatus_to_exitcode(status))
        if ready:
            content = os.read(0, 65536)
            if not content:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            *lines, unread = (unread + content).split(b"\n")
            for asked in map(json.loads, lines):
                pid = os.fork()
                if pid == 0:
                    return _become(asked)
                pids.add(pid)
                _say(pid=pid)


def _say(**said: int) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


def _become(asked: dict[str, Any]) -> dict[str, Any]:
    """Makes the forked process what a started one would be."""
    import numpy as np

    output = os.open(asked["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(asked["environ"])
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [place for place in places if place and place not in sys.path]
    tempfile.tempdir = None
    np.random.seed()  # Python's own generator does so by itself
    if options := os.environ.get("PYTHONWARNINGS"):  # which Python reads when it starts
        warnings._processoptions(options.split(","))  # type: ignore[attr-defined]
    request: dict[str, Any] = asked["request"]
    return request


if __name__ == "__main__":
    from raydist.training.reporting.progress import flush_output
    from tests.support import task_main

    task_main.main(serve(KerasFlavour(sys.argv[1])))
    # Ray ends a task's process at once, too. TensorFlow's threads may still be at work on an iterator, and
    # one that Python destroys meanwhile aborts the process ("terminate called without an active exception").
    flush_output()
    os._exit(0)
