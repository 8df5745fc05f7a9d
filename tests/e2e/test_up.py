"""`raydist up` and `raydist down`: a Ray of this machine that stays between runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN
from tests.support.environ import inherited

pytestmark = pytest.mark.slow

_JOB = """
import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    for step in range(1, 4):
        ctx.report({"loss": 1.0 / step}, step=step)
"""


@pytest.fixture
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A home and a folder of Ray's own; ends what is left there."""
    folder = Path(f"/tmp/rd-up-{os.getpid()}")  # short: Ray's sockets lie in it
    folder.mkdir()
    environ = {**inherited(), "HOME": str(folder), "TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
    environ.pop("RAY_ADDRESS", None)
    yield environ
    subprocess.run([BIN / "raydist", "down"], env=environ, capture_output=True)
    subprocess.run(["rm", "-rf", folder])


def processes_of(environ: dict[str, str], title: bytes) -> set[int]:
    """Returns the processes below that folder whose command line has `title`."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if title not in (process / "cmdline").read_bytes():
                continue
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RAY_TMPDIR={environ['RAY_TMPDIR']}".encode() in variables:
            found.add(int(process.name))
    return found


def raydist(environ: dict[str, str], cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "raydist", *arguments], env=environ, cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_ray_that_stays_is_found_by_submit_and_is_warm_until_it_is_ended(
    environ: dict[str, str], tmp_path: Path, wait_until: WaitUntil
) -> None:
    (tmp_path / "job.py").write_text(_JOB)
    up = raydist(environ, tmp_path, "up", "--num-cpus", "2", "--json")
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout)
    assert told["is_warm"]
    servers = processes_of(environ, b"raydist::fork-server")
    assert len(servers) == 1

    again = raydist(environ, tmp_path, "up")
    assert (again.returncode, again.stdout) == (3, "")
    assert f"Ray runs already at {told['address']}" in again.stderr
    assert "Traceback" not in again.stderr

    run = raydist(environ, tmp_path, "submit", "job.py", "--name", "one", "--keep-warm", "0")
    assert run.returncode == 0, run.stderr
    assert f"Ray at {told['address']}" in run.stdout
    assert processes_of(environ, b"raydist::fork-server") == servers  # the one that was there, and it stays

    down = raydist(environ, tmp_path, "down")
    assert (down.returncode, down.stdout) == (0, f"Ray at {told['address']} is ended\n")
    titles = (b"raydist::", b"raylet", b"gcs_server", b"ray::")
    wait_until(lambda: not any(processes_of(environ, title) for title in titles))
    nothing = raydist(environ, tmp_path, "down")
    assert (nothing.returncode, nothing.stdout) == (0, "no Ray of raydist up runs here\n")


def test_ray_that_cannot_be_started_is_told_in_a_sentence(environ: dict[str, str], tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 120)
    too_long.mkdir()
    up = raydist({**environ, "RAY_TMPDIR": str(too_long)}, tmp_path, "up")
    assert up.returncode == 3, up.stderr
    assert "Ray could not be started: " in up.stderr
    assert "Traceback" not in up.stderr
