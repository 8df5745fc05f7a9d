"""Ray dies under a run that was submitted attached: what the user sees, and what stays on the host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, start_command
from tests.support.environ import inherited
from tests.support.ray_heads import ray_head
from tests.support.records import record_of

pytestmark = pytest.mark.slow

# One process that trains nothing: a death of Ray is the same to it.
_JOB = """
import time

import raydist


@raydist.job(strategy="one_device", params={"steps": 100_000})
def train(ctx: raydist.TrainContext):
    for step in range(1, ctx.params["steps"] + 1):
        ctx.report({"loss": 1.0 / step}, step=step)
        time.sleep(0.05)
"""
_START_S = 240.0  # on a host that others share


@dataclass
class Host:
    """A host of one's own: a folder for all that Ray and raydist leave, and the processes that use it.

    Attributes:
      temporary: Short, because Ray's sockets lie in it.
    """

    folder: Path
    temporary: Path
    environ: Mapping[str, str]
    shared_memory: set[str] = field(default_factory=lambda: set(os.listdir("/dev/shm")))
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def storage(self) -> Path:
        return self.folder / "raydist_runs"

    def submit(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(str(BIN / "raydist"), "submit", *arguments)

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = start_command(command, folder=self.folder, environ=self.environ, has_own_session=True)
        self.started.append(process)
        return process

    def processes(self) -> dict[int, str]:
        """Returns what uses this host's folder: it is in the environment that all inherit.

        Ray overwrites that of processes that it renames, some of the time; those have logs open there.
        """
        inherited, folder, found = f"TMPDIR={self.temporary}\0".encode(), f"{self.temporary}/", {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                has_open = any(os.readlink(fd).startswith(folder) for fd in (process / "fd").iterdir())
                if has_open or inherited in (process / "environ").read_bytes():
                    name = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(process.name)] = name.decode(errors="replace")
        return found

    def named(self, *parts: str) -> list[int]:
        """Returns its processes whose command lines have one of these."""
        return [pid for pid, name in self.processes().items() if any(part in name for part in parts)]

    def left(self) -> list[str]:
        """Returns the folders and shared-memory files that are still there."""
        scratch = self.temporary / f"raydist-{os.getuid()}"
        folders = [*(scratch.iterdir() if scratch.exists() else ()), *self.temporary.glob("ray/session_2*")]
        memory = set(os.listdir("/dev/shm")) - self.shared_memory
        return [*(path.name for path in folders), *(name for name in memory if "plasma" in name.lower())]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    temporary = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))
    environ = {**inherited(), "TMPDIR": str(temporary), "HOME": str(temporary)}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    host = Host(folder=tmp_path, temporary=temporary, environ=environ)
    yield host
    for pid in host.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in host.started:
        process.communicate(timeout=60)
    shutil.rmtree(temporary, ignore_errors=True)


def write_job(folder: Path) -> str:
    (folder / "code").mkdir()
    (folder / "code" / "job.py").write_text(_JOB)
    return str(folder / "code" / "job.py")


def reaches(host: Host, name: str, *, steps: int) -> Callable[[], bool]:
    return lambda: record_of(host.storage, name)["steps"] >= steps


def check_ended(host: Host, name: str) -> dict[str, Any]:
    record = record_of(host.storage, name)
    assert (record["state"], record["error"]["type"]) == ("FAILED", "ClusterError")
    assert f"`raydist resume {name}" in record["error"]["message"]
    assert not {task["state"] for task in record["tasks"]} & {"RUNNING", "STARTING", "PENDING"}
    return record


@pytest.mark.exhaustive("EnvAgent", covered_by="[/raylet ], without which Ray ends as well")
@pytest.mark.parametrize("victim", ["/raylet ", "EnvAgent"])  # Ray renames its agents
def test_embedded_ray_that_dies_is_exit_code_3_and_leaves_nothing(
    host: Host, wait_until: WaitUntil, victim: str
) -> None:
    process = host.submit(write_job(host.folder), "--address", "local", "--name", "r", "--json")
    wait_until(reaches(host, "r", steps=12), timeout_s=_START_S)
    wait_until(lambda: host.named(victim), timeout_s=_START_S)
    os.kill(host.named(victim)[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 3, err
    told, record = json.loads(out), check_ended(host, "r")
    assert (told["state"], told["error"]) == ("FAILED", record["error"])
    assert told["error"]["message"].startswith("Ray died under the run")
    assert "Traceback" not in err
    assert host.left() == []
    wait_until(lambda: host.processes() == {})


@pytest.mark.exhaustive("all", covered_by="[group], and the tests beside it that end Ray's processes")
@pytest.mark.parametrize("receivers", ["group", "all"])
def test_sigterm_to_all_processes_of_a_command_ends_the_run_and_leaves_nothing(
    host: Host, wait_until: WaitUntil, receivers: str
) -> None:
    process = host.submit(write_job(host.folder), "--address", "local", "--name", "r", "--json")
    wait_until(reaches(host, "r", steps=12), timeout_s=_START_S)
    if receivers == "group":  # as of `timeout`
        os.killpg(process.pid, signal.SIGTERM)
    else:  # as of a batch system; Ray may end the driver before that has stopped the run
        for pid in host.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    told = (process.returncode, json.loads(out)["state"])
    assert told in ([(130, "CANCELLED")] if receivers == "group" else [(130, "CANCELLED"), (3, "FAILED")])
    assert "Ray did not answer" not in err
    assert "Traceback" not in err
    assert record_of(host.storage, "r")["state"] == told[1]
    assert host.left() == []
    wait_until(lambda: host.processes() == {})


def signal_ray(host: Host, number: int) -> None:
    """Sends what `ray stop` sends, to all processes that it would find, and to no other Ray's."""
    rays = ("/raylet ", "gcs_server", "ray::", "log_monitor.py", "dashboard.py", "default_worker.py")
    for pid in host.named(*rays):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_ray_stop_under_a_run_is_exit_code_3_and_the_run_can_be_resumed(
    host: Host, wait_until: WaitUntil
) -> None:
    job = write_job(host.folder)
    with ray_head(TMPDIR=str(host.temporary)) as head:
        environ = {**host.environ, "HOME": head.environ["HOME"]}
        host.environ = environ
        process = host.submit(job, "--address", head.address, "--name", "r")
        wait_until(reaches(host, "r", steps=12), timeout_s=_START_S)
        signal_ray(host, signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 3, out + err
    check_ended(host, "r")
    assert "Ray died under the run" in out
    assert "Traceback" not in out + err
    assert host.left() == []
    wait_until(lambda: host.processes() == {})
    resumed = host.start(str(BIN / "raydist"), "resume", "r", "--address", "local", "-p", "steps=3")
    out, err = resumed.communicate(timeout=250)
    assert resumed.returncode == 0, out + err
    assert record_of(host.storage, "r")["state"] == "SUCCEEDED"


def test_killed_driver_leaves_nothing_and_is_told(host: Host, wait_until: WaitUntil) -> None:
    process = host.submit(write_job(host.folder), "--address", "local", "--name", "r")
    wait_until(lambda: record_of(host.storage, "r")["state"] == "STARTING", timeout_s=_START_S)
    os.kill(record_of(host.storage, "r")["driver"]["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 3, err
    assert "killed by SIGKILL; `raydist resume r" in out
    check_ended(host, "r")
    assert host.left() == []
    wait_until(lambda: host.processes() == {})


_SCRIPT = """
import raydist, sys
raydist.run(sys.argv[1], name="r", address="local", timeout=3000)
"""


def test_script_that_ray_ends_leaves_a_record_and_nothing_else(host: Host, wait_until: WaitUntil) -> None:
    process = host.start(sys.executable, "-c", _SCRIPT, write_job(host.folder))
    wait_until(reaches(host, "r", steps=12), timeout_s=_START_S)
    os.kill(host.named("/raylet ")[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=100)  # to the watcher's end, which has the same stderr
    assert process.returncode == 1  # Ray's own, below Python
    check_ended(host, "r")
    assert f"raydist: run r ({host.storage}/r): the process that drove the run died" in err
    assert host.left() == []
    wait_until(lambda: host.processes() == {})
