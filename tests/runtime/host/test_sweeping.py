"""The next command on a host removes what killed processes have left there, and nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydist.cli import main
from raydist.private_folders import run_folder
from raydist.runtime.host.ray_session import mark_session, sweep_host
from raydist.runtime.host.scratch import scratch_root

_DRIVER = """
import sys, time
from pathlib import Path
from raydist.runtime.host.ray_session import mark_session
mark_session(Path(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""
_EMBEDDED = """
import time
from raydist.runtime.cluster.connection import EmbeddedSize, connect
connect("local", embedded=lambda: EmbeddedSize(num_cpus=1))
print("up", flush=True)
time.sleep(600)
"""


pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.fixture
def session(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / "ray" / name
        (path / "logs").mkdir(parents=True)
        latest = path.with_name("session_latest")
        latest.unlink(missing_ok=True)
        latest.symlink_to(path)
        return path

    return make


def killed(code: str, *arguments: str) -> None:
    """Starts a process, and kills it once it is up."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_any_command_removes_the_session_of_a_killed_process(
    session: Callable[[str], Path], tmp_path: Path
) -> None:
    killed(_DRIVER, str(session("session_1")))
    assert names_in(tmp_path / "ray") == ["session_1", "session_latest"]
    assert main.run(["list", "--storage", str(tmp_path / "runs")]) == 0
    assert names_in(tmp_path / "ray") == []


def test_any_command_removes_the_scratch_folder_of_a_dead_task(tmp_path: Path) -> None:
    path = scratch_root() / "run-0-worker-0-0badcafe-0"
    path.mkdir(parents=True)
    an_hour_ago = time.time() - 3600
    (path / "lock").write_text("")
    os.utime(path, (an_hour_ago, an_hour_ago))
    main.run(["list", "--storage", str(tmp_path / "runs")])
    assert names_in(scratch_root()) == []


def test_session_of_a_living_process_and_of_another_program_stay(
    session: Callable[[str], Path], tmp_path: Path
) -> None:
    session("session_of_ray_start")
    remove = mark_session(session("session_living"))
    sweep_host()
    assert names_in(tmp_path / "ray") == ["session_latest", "session_living", "session_of_ray_start"]
    remove()
    assert names_in(tmp_path / "ray") == ["session_of_ray_start"]


def test_session_stays_if_a_command_sweeps_while_it_is_marked(
    session: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def sweep_then_lock(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        sweep_host()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_then_lock)
    path = session("session_living")
    remove = mark_session(path)
    assert names_in(run_folder()) == ["session_living.lock"]
    sweep_host()
    assert (names_in(run_folder()), names_in(path)) == (["session_living.lock"], ["logs"])
    remove()
    assert (names_in(run_folder()), names_in(tmp_path / "ray")) == ([], [])


def test_session_elsewhere_is_not_reached_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "thesis").mkdir(parents=True)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "session_2").symlink_to(elsewhere)
    killed(_DRIVER, str(tmp_path / "ray" / "session_2"))
    sweep_host()
    assert names_in(elsewhere) == ["thesis"]


def test_host_where_nothing_can_be_swept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "ray").write_text("a file")
    taken = scratch_root()
    taken.write_text("a file")
    sweep_host()
    assert names_in(tmp_path) == ["ray", taken.name]


@pytest.mark.slow
def test_embedded_ray_of_a_killed_process_leaves_nothing_after_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(f"/tmp/rdsw{os.getpid()}")  # Unix sockets below it allow about 100 characters
    short.symlink_to(tmp_path)
    monkeypatch.setenv("TMPDIR", str(short))
    try:
        killed(_EMBEDDED)
        assert any(name.startswith("session_2") for name in names_in(tmp_path / "ray"))
        main.run(["list", "--storage", str(tmp_path / "runs")])
        assert names_in(tmp_path / "ray") == []
    finally:
        short.unlink()
