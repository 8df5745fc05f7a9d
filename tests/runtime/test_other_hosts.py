"""A second node beside the driver's: what is placed there, what it lacks, and what dies there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from raydist.errors import ClusterError
from raydist.runtime.cluster_inventory import probe_inventory
from raydist.runtime.connection import Connection
from raydist.runtime.scratch import scratch_root, sweep
from raydist.spec import FailureKind, TaskState
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, make_plan
from tests.support.ray_heads import ray_node

Start = Callable[..., Drive]

ONLY_THERE = 6.0  # CPUs, more than the driver's node has


def gcs_address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def test_log_of_a_task_killed_on_another_node_is_salvaged_there(
    ray_cluster: Connection, start: Start, wait_until: WaitUntil
) -> None:
    with ray_node(gcs_address(), num_cpus=6):
        assert sorted(host.num_cpus for host in probe_inventory(ray_cluster).hosts) == [4.0, 6.0]
        drive = start(make_plan(1, num_cpus=ONLY_THERE, steps=3000))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
        os.kill(drive.statuses["worker/0"].pid, signal.SIGKILL)
        wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
        drive.group.stop()
        assert drive.log("worker/0").splitlines()[:2] == ["worker/0 warms up", "worker/0 step 0"]
        assert list(scratch_root().iterdir()) == []


def test_node_that_dies_with_its_task_is_lost(start: Start, wait_until: WaitUntil) -> None:
    with ray_node(gcs_address(), num_cpus=6):
        drive = start(make_plan(1, num_cpus=ONLY_THERE, steps=3000))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
    wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
    failure = drive.statuses["worker/0"].failure
    assert failure is not None
    assert failure.kind is FailureKind.LOST
    drive.group.stop()
    sweep(scratch_root(), stale_after_s=-1)  # a lost host keeps its folder until its next task


def test_other_version_on_a_host_is_refused_and_named(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    info = tmp_path / "tensorflow-9.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 9.9.0\n")
    with ray_node(gcs_address(), num_cpus=6, PYTHONPATH=str(tmp_path)):
        drive = start(make_plan(1, num_cpus=ONLY_THERE))
        with pytest.raises(ClusterError) as caught:
            wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
        drive.group.stop()
    host = gcs_address().rpartition(":")[0]
    assert f"host {host} has tensorflow 9.9.0, but the driver has tensorflow 2." in str(caught.value)


def test_host_without_raydist_is_named(start: Start, wait_until: WaitUntil, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'raydist':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    with ray_node(gcs_address(), num_cpus=6, PYTHONPATH=str(tmp_path)):
        drive = start(make_plan(1, num_cpus=ONLY_THERE))
        with pytest.raises(ClusterError) as caught:
            wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
        drive.group.stop()
    host = gcs_address().rpartition(":")[0]
    assert str(caught.value).startswith(f"host {host} cannot import raydist; install there the same raydist")
