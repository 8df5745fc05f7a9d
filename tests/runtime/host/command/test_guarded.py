"""Commands of real processes, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydist.runtime.host.guarded_command import GuardedCommand

Start = Callable[..., GuardedCommand]

# Ignores SIGTERM, and has a child in a session of its own that does as well.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
with open(f"pid-{len(sys.argv)}", "w") as f: f.write(str(os.getpid()))
time.sleep(600)
"""
POLITE = """
import pathlib, signal, sys, time
def end(*_): pathlib.Path("asked").touch(); sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path("ready").touch()
time.sleep(600)
"""
HOLDER = """
import os, sys, time
from pathlib import Path
from raydist.runtime.host.guarded_command import GuardedCommand
held = GuardedCommand.start([sys.executable, "program.py"], folder=Path("."), environ=os.environ, grace_s=0.2)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program in the test's folder; lets go of it at the end."""
    with contextlib.ExitStack() as stack:

        def start_program(program: str, *, grace_s: float = 0.5) -> GuardedCommand:
            (tmp_path / "program.py").write_text(program)
            command = GuardedCommand.start(
                [sys.executable, "program.py"], folder=tmp_path, environ=os.environ, grace_s=grace_s
            )
            stack.callback(command.close)
            return command

        yield start_program


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() and (path.stat().st_size or path.name == "ready") for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def pids_in(folder: Path) -> list[int]:
    paths = [folder / "pid-1", folder / "pid-2"]
    wait_for(*paths)
    return [int(path.read_text()) for path in paths]


@pytest.mark.parametrize(
    ("program", "code"),
    [("import sys; sys.exit(3)", 3), ("", 0), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_end_of_a_command_is_told(start: Start, program: str, code: int) -> None:
    command = start(program)
    assert (command.problem, command.wait()) == (None, code)
    assert command.wait_until_gone()


def test_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = GuardedCommand.start(["no-such-program"], folder=tmp_path, environ=os.environ, grace_s=1)
    assert command.problem == "No such file or directory: no-such-program"
    command.close()


def test_stopped_command_may_end_by_itself(start: Start, tmp_path: Path) -> None:
    command = start(POLITE, grace_s=20)
    wait_for(tmp_path / "ready")
    command.stop()
    command.stop()
    assert command.wait_until_gone()
    assert (tmp_path / "asked").exists()


def test_command_that_ignores_sigterm_is_killed_with_its_children(start: Start, tmp_path: Path) -> None:
    command = start(STUBBORN)
    pids = pids_in(tmp_path)
    command.stop()
    assert command.wait_until_gone()
    assert all(map(is_gone, pids))


def test_children_that_a_command_leaves_are_killed(start: Start, tmp_path: Path) -> None:
    leaver = STUBBORN.replace("time.sleep(600)", "time.sleep(600 if len(sys.argv) > 1 else 1)")
    command = start(leaver)
    [_, child] = pids_in(tmp_path)
    assert command.wait() == 0
    assert command.wait_until_gone()
    assert is_gone(child)


def test_command_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STUBBORN)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], cwd=tmp_path)
    pids = pids_in(tmp_path)
    holder.kill()
    holder.wait()
    deadline = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
