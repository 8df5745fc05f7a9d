"""`ray job submit -- raydist submit …`: exit codes, logs and the end of a run under Ray's own job server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydist.runtime.host.software import has_metrics_agent
from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, Ended, RunningRay, started_ray
from tests.support.processes import PATIENCE
from tests.support.ray_heads import free_ports
from tests.support.records import record_of
from tests.support.slow_job import write_slow_job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_metrics_agent(), reason="needs the extra prometheus, with Ray's job server"),
]

RayJob = Callable[..., Ended]


@pytest.fixture(scope="module")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningRay, str]]:
    """A Ray with a job server, and that one's URL."""
    (port,) = free_ports(1)
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    folder = Path(tmp_path_factory.mktemp("j", numbered=True))
    with started_ray(folder, environ=environ, job_server_port=port) as ray:
        url = f"http://127.0.0.1:{port}"
        _wait_for_agent(ray, url)
        yield ray, url


def _wait_for_agent(ray: RunningRay, url: str) -> None:
    """Waits for the process that starts jobs: on a cold disk it comes up a minute after the server."""
    deadline = time.monotonic() + 240
    command = [BIN / "ray", "job", "submit", f"--address={url}", "--", "true"]
    while (
        done := subprocess.run(command, env=dict(ray.environ), capture_output=True, text=True, timeout=180)
    ).returncode:
        assert "No available agent" in done.stderr, done.stdout + done.stderr
        assert time.monotonic() < deadline, done.stderr
        time.sleep(1)


@pytest.fixture
def ray_job(job_server: tuple[RunningRay, str], tmp_path: Path) -> RayJob:
    """Runs `ray job COMMAND …` in a folder with a job file, `slow.py`."""
    running, url = job_server
    folder = Path(write_slow_job(tmp_path)).parent

    def run(command: str, *arguments: str | Path) -> Ended:
        done = subprocess.run(
            [BIN / "ray", "job", command, f"--address={url}", *arguments],
            cwd=folder,
            env=dict(running.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180 * PATIENCE,
        )
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def submit_of(name: str, storage: Path, *arguments: str) -> tuple[str | Path, ...]:
    """Returns what follows `ray job submit` for a run of `slow.py`."""
    return (
        "--working-dir",
        ".",
        "--",
        "raydist",
        "submit",
        "slow.py",
        "--name",
        name,
        "--storage",
        storage,
        *arguments,
    )


def processes_of(storage: Path) -> list[str]:
    """Returns the command lines of the processes that have to do with runs of this storage, or are tasks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(storage) in line or re.match("ray::(TaskActor|Mailbox)", line):
            found.append(line)
    return found


def test_run_that_succeeds_is_a_job_that_succeeds_with_its_log(ray_job: RayJob, tmp_path: Path) -> None:
    ended = ray_job("submit", *submit_of("good", tmp_path, "-p", "pause_s=0", "-p", "epochs=1"))
    assert ended.code == 0, ended.out + ended.err
    assert "SUCCEEDED after 10 steps" in ended.out + ended.err
    assert record_of(tmp_path, "good")["state"] == "SUCCEEDED"


def test_run_that_fails_is_a_job_that_fails_with_its_traceback(ray_job: RayJob, tmp_path: Path) -> None:
    ended = ray_job("submit", *submit_of("bad", tmp_path, "-p", "raise_at=2", "--max-failures", "0"))
    assert ended.code == 1
    assert "ValueError: the user's own mistake" in ended.out + ended.err
    assert "failed with exit code 1" in ended.out + ended.err


def test_mistake_has_its_exit_code(ray_job: RayJob, tmp_path: Path) -> None:
    ended = ray_job("submit", *submit_of("mistake", tmp_path, "--wokers", "2"))
    assert ended.code == 1  # that of `ray job submit` for every job that fails
    assert "failed with exit code 2" in ended.out + ended.err


def test_stopped_job_cancels_its_run_and_leaves_nothing(
    ray_job: RayJob, tmp_path: Path, wait_until: WaitUntil
) -> None:
    number = uuid.uuid4().hex
    options = ("--no-wait", f"--submission-id={number}")
    assert ray_job("submit", *options, *submit_of("stopped", tmp_path, "-p", "epochs=500")).code == 0
    wait_until(lambda: record_of(tmp_path, "stopped")["steps"] >= 2, timeout_s=120)
    assert len([line for line in processes_of(tmp_path) if line.startswith("ray::TaskActor")]) == 2
    assert ray_job("stop", number).code == 0
    wait_until(lambda: record_of(tmp_path, "stopped")["state"] == "CANCELLED", timeout_s=30)
    wait_until(lambda: processes_of(tmp_path) == [], timeout_s=30)
    # The same command again continues.
    ended = ray_job("submit", *submit_of("stopped", tmp_path, "--resume", "auto", "-p", "epochs=2"))
    assert ended.code == 0, ended.out + ended.err
    record = json.loads((tmp_path / "stopped" / "run.json").read_text())
    assert (record["state"], record["attempts"]) == ("SUCCEEDED", 2)
