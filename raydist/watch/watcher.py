"""The driver's side: how a driver comes to be watched, and the JSON lines that it sends through a pipe."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


@dataclass(frozen=True, kw_only=True)
class DrivenRun:
    """What has to be known of a run to clear up after the process that drove it.

    Attributes:
      storage: The storage that holds the runs, absolute.
      owner: Marks what the run's tasks leave on their hosts (runtime.host.salvage).
      driver: The process, as raydist.storage.claims describes it and run.json contains it.
      session: The embedded Ray's folder; None for a Ray that is not the run's own.
      is_study: Whether it is a search, whose runs others drive, and `name` the study's.
    """

    name: str
    storage: str
    owner: str
    driver: Mapping[str, Any]
    session: str | None = None
    is_study: bool = False


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """What a driver has sent so far.

    Attributes:
      run: The run that it drives; None before it begins, and once it is over.
      has_begun: Whether it has begun a run.
      exit_code: What the command ends with; None until it is done.
    """

    run: DrivenRun | None = None
    has_begun: bool = False
    exit_code: int | None = None

    @property
    def is_over(self) -> bool:
        return self.has_begun and self.run is None

    @classmethod
    def of(cls, data: bytes) -> DriverFacts:
        """Reads what came through the pipe; a line that was cut off is left out."""
        facts = cls()
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                facts = facts._with(json.loads(line))
        return facts

    def _with(self, message: Mapping[str, Any]) -> DriverFacts:
        if "exit_code" in message:
            return dataclasses.replace(self, exit_code=message["exit_code"])
        run = None if message["run"] is None else DrivenRun(**message["run"])
        return dataclasses.replace(self, run=run, has_begun=True)


_STOP_TIMEOUT_S = 5.0
# Appended, and without the current folder (as by -P, which came with Python 3.11), so that nothing next to
# raydist hides a module of Python's.
_START = (
    "import sys; sys.path = [one for one in sys.path if one] + [sys.argv[2]]; "
    "from raydist.watch.process import main; main()"
)

# The pipe to the supervisor; -1 in a process without one.
_supervisor = -1


class Watcher:
    """The process that watches over this one. If it has died, or there is none, nothing else changes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def begin(self, run: DrivenRun) -> None:
        """Sends what this process drives from now on."""
        self._send({"run": dataclasses.asdict(run)})

    def end(self) -> None:
        """Sends that the run is over and that nothing of it is left."""
        self._send({"run": None})

    def exit(self, exit_code: int) -> None:
        """Sends the command's exit code, regardless of what happens to the process from here on."""
        self._send({"exit_code": exit_code})

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, json.dumps(message).encode() + b"\n")


@contextlib.contextmanager
def watched() -> Iterator[Watcher]:
    """Has this process watched over: by the supervisor that started it, else by a process of its own."""
    pipe = _supervisor
    process = _start() if pipe == -1 else None
    if process is not None and process.stdin is not None:
        pipe = process.stdin.fileno()
    watcher = Watcher(pipe)
    try:
        yield watcher
    finally:
        watcher.end()
        if process is not None:
            _stop(process)


def supervised_by(pipe: int) -> Watcher:
    """Notes that this process was started by a supervisor, which reads from that pipe."""
    global _supervisor
    _supervisor = pipe
    return Watcher(pipe)


def _start() -> subprocess.Popen[bytes] | None:
    """Starts a watcher beside this process; a session of its own keeps it clear of Ctrl-C."""
    import subprocess  # the command line has a supervisor, and no need of it

    root = str(Path(__file__).parents[2])
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid()), root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # whose end is the watcher's, which is not a child of this process
            start_new_session=True,
            bufsize=0,
        )
    except OSError:  # no more processes, or no such Python: the run is worth more than its watcher
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Waits for the watcher's end, once it was sent that the run is over."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    with process.stdout:
        select.select([process.stdout], [], [], _STOP_TIMEOUT_S)
