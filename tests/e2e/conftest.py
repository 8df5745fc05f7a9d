from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import OWN_ERROR, PATIENCE
from tests.support.ray_heads import free_ports
from tests.support.records import record_of
from tests.support.slow_job import write_slow_job

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TOKENS_SINCE = (2, 52)  # Ray's first version with token authentication


def version_of(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


@dataclass(frozen=True, kw_only=True)
class RunningRay:
    """A Ray that `ray start --head` started: what a shell needs to use it."""

    address: str
    environ: Mapping[str, str]
    temp_dir: Path

    def told_by(self, folder: Path, *arguments: object) -> Any:
        """Runs Python with these arguments; returns the JSON that it prints last, if any."""
        command = [sys.executable, *map(str, arguments)]
        ended = subprocess.run(
            command, cwd=folder, env=dict(self.environ), capture_output=True, text=True, timeout=200
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1]) if ended.stdout.strip() else None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Raydist = Callable[..., Ended]


@pytest.fixture(scope="session")
def running_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRay]:
    """One `ray start --head` with token authentication for all end-to-end tests."""
    with started_ray(Path(tmp_path_factory.mktemp("r", numbered=True)), environ=os.environ) as ray:
        yield ray


@pytest.fixture(scope="session")
def gpu_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRay]:
    """A Ray that believes that there are two GPUs: it only counts them."""
    with started_ray(
        Path(tmp_path_factory.mktemp("g", numbered=True)), environ=os.environ, num_gpus=2
    ) as ray:
        yield ray


@contextlib.contextmanager
def started_ray(
    folder: Path, *, environ: Mapping[str, str], job_server_port: int | None = None, num_gpus: int = 0
) -> Iterator[RunningRay]:
    """A `ray start --head` with token authentication, whose tasks have `environ`.

    Args:
      job_server_port: Port of Ray's dashboard with its job server; None starts none.
      num_gpus: How many GPUs Ray believes there are.
    """
    # Unix sockets below Ray's folder allow about 100 characters.
    short = Path(f"/tmp/rd{os.getpid()}-{folder.name}")
    short.symlink_to(folder)
    # The agent of the session's own Ray has the port that is the default.
    port, agent_port = free_ports(2)
    environ = dict(environ)
    if version_of(metadata.version("ray")) >= TOKENS_SINCE:
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [
        BIN / "ray",
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=4",
        f"--num-gpus={num_gpus}",
    ]
    command += [f"--dashboard-agent-listen-port={agent_port}", "--include-log-monitor=false"]
    command += [f"--temp-dir={short}", f"--include-dashboard={str(job_server_port is not None).lower()}"]
    command += [] if job_server_port is None else [f"--dashboard-port={job_server_port}"]
    log = (folder / "head.txt").open("wb")
    head = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 180 * PATIENCE
        while "Ray runtime started" not in (folder / "head.txt").read_text():
            assert head.poll() is None, (folder / "head.txt").read_text()
            assert time.monotonic() < deadline, "ray start did not answer in time"
            time.sleep(0.2)
        yield RunningRay(address=f"127.0.0.1:{port}", environ=environ, temp_dir=folder)
    finally:
        _end(head, short)
        log.close()
        short.unlink()


def _end(head: subprocess.Popen[bytes], temp_dir: Path) -> None:
    """Ends this Ray and no other. `ray stop` would end every Ray of the machine."""
    head.kill()
    head.wait()
    mine = str(temp_dir).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mine in (process / "cmdline").read_bytes() or mine in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def raydist(running_ray: RunningRay, tmp_path: Path) -> Callable[..., Ended]:
    """Runs a raydist command in a shell of its own, against the running Ray unless told otherwise."""

    def run(*arguments: str, timeout_s: float = 180) -> Ended:
        process = start_raydist(running_ray, tmp_path, *arguments)
        try:
            out, err = process.communicate(timeout=timeout_s * PATIENCE)
        finally:
            process.kill()
        assert OWN_ERROR not in out + err, out + err
        return Ended(code=process.returncode, out=out, err=err)

    return run


def start_command(
    command: Sequence[str | Path], *, folder: Path, environ: Mapping[str, str], has_own_session: bool = False
) -> subprocess.Popen[str]:
    """Starts a command whose output is kept for `communicate`."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=has_own_session,
    )


def start_raydist(running_ray: RunningRay, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command in `folder`; what starts runs goes to the running Ray."""
    starts = arguments[0] in ("submit", "search", "resume") or {"reproduce", "--verify"} <= {*arguments}
    if starts and "--address" not in arguments:
        arguments = (arguments[0], "--address", running_ray.address, *arguments[1:])
    return start_command([BIN / "raydist", *arguments], folder=folder, environ=running_ray.environ)


def status_of(folder: Path, run: str) -> dict[str, Any]:
    """Returns the record of a run that was submitted in `folder`."""
    return record_of(folder / "raydist_runs", run)


@pytest.fixture
def slow_job(tmp_path: Path) -> str:
    return write_slow_job(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `slow_job` tells of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = ("submit", write_slow_job(folder), "--json", "-p", "pause_s=0")
    out, err = start_raydist(running_ray, folder, *command).communicate(timeout=180)
    assert out, err
    told: dict[str, Any] = json.loads(out)
    assert told["state"] == "SUCCEEDED", err
    return told
