"""Stopping a group whose Ray is gone already."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from raydist.runtime.cluster.connection import EmbeddedSize, connect
from raydist.runtime.group.group import LaunchSpec, RayTaskGroup
from raydist.runtime.host.scratch import scratch_root
from tests.runtime.conftest import COUNTING, make_plan

def kill_gcs():
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text().split("\\0")[0]:
                os.kill(int(pid), signal.SIGKILL)

connection = connect("local", embedded=lambda: EmbeddedSize(num_cpus=2))
launch = LaunchSpec(
    connection=connection, storage_uri=sys.argv[2], run_uri=sys.argv[2] + "/run", runner=COUNTING
)
group = RayTaskGroup.start(make_plan(2, steps=100_000), launch, attempt=0)
pids = {}
while len(pids) < 2:
    pids |= {s.task: s.pid for s in group.poll(timeout_s=1).statuses if s.state.name == "RUNNING"}
connection.close() if sys.argv[1] == "closed" else kill_gcs()
group.stop()
import ray
print(json.dumps({
    "living": [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()],
    "left": [path.name for path in scratch_root().iterdir()],
    "is_initialized": ray.is_initialized(),
}))
connection.close()
"""


@pytest.mark.exhaustive("True", covered_by="[closed-False]; e2e/test_dead_ray.py kills")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "is_initialized"), [("closed", False), pytest.param("killed", True, marks=pytest.mark.slow)]
)
def test_stop_without_ray_ends_the_tasks_of_this_host(
    tmp_path: Path, ray_cluster: object, how: str, is_initialized: bool
) -> None:
    environ = {**os.environ, "TMPDIR": f"/tmp/rd-{os.getpid()}"}  # short: Ray's sockets lie in it
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    Path(environ["TMPDIR"]).mkdir()
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, how, str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    assert answer == {"living": [], "left": [], "is_initialized": is_initialized}
    shutil.rmtree(environ["TMPDIR"])
