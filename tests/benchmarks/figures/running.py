"""Runs a benchmark: a process whose figures are read, and of which nothing is left."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures.printing import FILE
from tests.benchmarks.figures.table import Benchmark
from tests.support.guide import ROOT

_PR_SET_CHILD_SUBREAPER = 36
# What a script may take to end its own processes after Ctrl-C, and those after SIGTERM.
_PATIENCE_S = 20.0
_END_S = 5.0


class FailedError(RuntimeError):
    """A benchmark failed; the message is one sentence."""


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave running, so that `end_all` finds it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def carry_out(benchmark: Benchmark, folder: Path, *, is_quick: bool, lines: list[dict[str, Any]]) -> None:
    """Runs a benchmark to its end and adds the figures that it printed to `lines`, also if it failed.

    Args:
      folder: Takes its output, and what pip installs for it.

    Raises:
      FailedError: It failed, took far too long or printed no figure.
    """
    found, output = folder / "figures.jsonl", folder / "output"
    found.touch()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", ""), *installed(benchmark.requires, folder / "packages")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), FILE: str(found)}
    limit_s = 60 * max(10.0, 5 * benchmark.minutes)
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                benchmark.command(is_quick=is_quick),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through `_interrupt`, once
            )
            try:
                status = _wait(process, limit_s)
            finally:
                _interrupt(process)
                end_all()
    finally:
        lines += map(json.loads, found.read_text().splitlines())
    if status is None:
        raise FailedError(f"did not end within {limit_s / 60:.0f} minutes; see {output}")
    if status:
        raise FailedError(f"exit code {status}: {_last_line(output)}; see {output}")
    if not lines:
        raise FailedError(f"printed no figure; see {output}")


def installed(requires: Sequence[str], folder: Path) -> list[str]:
    """Installs what this environment lacks into a folder; returns folders for sys.path."""
    missing = [name for name in requires if not _is_there(name)]
    if not missing:
        return []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--target", str(folder), *missing], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FailedError(f"needs `pip install {' '.join(missing)}`, which failed: {reason}")
    return [str(folder)]


def _is_there(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Returns a process's exit code, or None if it continues for longer."""
    ends_at_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < ends_at_s:
        _reap(but=process.pid)
        time.sleep(0.1)
    return process.returncode


def _reap(*, but: int | None = None) -> None:
    """Ends the wait of orphans for their parent, without which a host that is a namespace never dies."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == but:
                return
            os.waitpid(found.si_pid, 0)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        _wait(process, _PATIENCE_S)


def end_all() -> None:
    """Ends every process that this one or its children started."""
    began_at_s = time.monotonic()
    while pids := descendants():
        number = signal.SIGTERM if time.monotonic() - began_at_s < _END_S else signal.SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.2)
        _reap()


def descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for pid in new for child in parents.get(pid, ())]
        found += new
    return found


def _last_line(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def circumstances() -> dict[str, str]:
    """Returns what each line of the record says besides the figure: date, commit and machine."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    names = {"tensorflow": "TensorFlow", "keras": "Keras", "ray": "Ray"}
    versions = [
        f"{shown} {importlib.metadata.version(name)}" for name, shown in names.items() if _is_there(name)
    ]
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    cores = f"{len(os.sched_getaffinity(0))} cores of {_processor()}, {memory_gb:.0f} GB"
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": ", ".join([cores, f"Python {python}", *versions]),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )
