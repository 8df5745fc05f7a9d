"""A driver that is killed takes its tasks with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from raydist.runtime.cluster.connection import Connection
from raydist.runtime.host.scratch import scratch_root, sweep
from tests.conftest import WaitUntil
from tests.support.leaks import Snapshot

_DRIVER = """
import sys, time
from raydist.runtime.cluster.connection import connect
from raydist.runtime.group.group import LaunchSpec, RayTaskGroup
from tests.runtime.conftest import COUNTING, make_plan
connection = connect(sys.argv[1])
plan = make_plan(2, steps=100_000)
launch = LaunchSpec(
    connection=connection, storage_uri=sys.argv[2], run_uri=sys.argv[2] + "/run", runner=COUNTING
)
group = RayTaskGroup.start(plan, launch, attempt=0)
pids = {}
while len(pids) < 2:
    pids |= {s.task: s.pid for s in group.poll(timeout_s=1).statuses if s.state.name == "RUNNING"}
print(*pids.values(), flush=True)
time.sleep(600)
"""


def test_killed_driver_leaves_no_task_actor_or_placement_group(
    ray_cluster: Connection, wait_until: WaitUntil, tmp_path: Path
) -> None:
    import ray

    before = Snapshot.take()
    address = ray.get_runtime_context().gcs_address
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, address, str(tmp_path)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        driver.send_signal(signal.SIGKILL)

    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    # Agents that Ray killed before they had cleared up leave their folders to the next sweep.
    wait_until(lambda: sweep(scratch_root(), stale_after_s=-1) or Snapshot.take().beyond(before) == {})
