"""Processes that claim a run at the same moment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from raydist.spec.job import EntryPoint, JobSpec, Resume

_CLAIMANT = """
import sys
from raydist.errors import RaydistError
from raydist.storage.run_folder import RunFolder
from tests.support.claimants import job_for

print("up", flush=True)
for line in sys.stdin:
    folder = RunFolder.of(job_for(line.strip(), storage=sys.argv[1], resume=sys.argv[2] == "resume"))
    try:
        folder.claim()
        print("won", flush=True)
    except RaydistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def job_for(name: str, *, storage: str, resume: Resume = False) -> JobSpec:
    return JobSpec(
        name=name, entry_point=EntryPoint(module="m", function="f"), storage=storage, resume=resume
    )


class Claimants:
    """Some processes; each answers `won`, or with the error that it was told."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        for process in processes:
            assert _line(process) == "up"

    def race(self, run: str) -> dict[int, str]:
        """Lets all claim that run at once; returns what each answered, by its pid."""
        for process in self._processes:
            process.stdin.write(f"{run}\n")
            process.stdin.flush()
        return {process.pid: _line(process) for process in self._processes}


@contextlib.contextmanager
def claimants(count: int, *, storage: str, resume: bool = False) -> Iterator[Claimants]:
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", _CLAIMANT, storage, "resume" if resume else "submit"]
        yield Claimants([_start(command, stack) for _ in range(count)])


def _start(command: list[str], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()
