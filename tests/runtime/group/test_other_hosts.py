"""A second node beside the driver's: what is placed there, what it lacks, and what dies there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.errors import ClusterError, StorageError
from raydist.outcome.status import FailureKind, TaskState
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.inventory import probe_inventory
from raydist.runtime.cluster.placement import Placement
from raydist.runtime.cluster.ray_internals import free_resources
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from raydist.runtime.host.scratch import scratch_root, sweep
from raydist.runtime.task.code_archive import pack
from raydist.spec.job import WorkerRange
from raydist.spec.tasks import Resources, TaskId
from raydist.storage.proof import StorageProof
from tests.conftest import WaitUntil
from tests.runtime.conftest import Start, make_plan, make_ps_plan
from tests.support.disks import behind_another_disk, mounted_disk
from tests.support.ray_heads import drain, gcs_address, ray_node, wait_for_lost_nodes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("only_the_drivers_node")]

ONLY_THERE = 6.0  # CPUs, more than the driver's node has


@pytest.fixture(scope="class")
def large_node(ray_cluster: Connection) -> Iterator[None]:
    wait_for_lost_nodes()
    with ray_node(gcs_address(), num_cpus=6):
        yield


@pytest.fixture(scope="class")
def equal_node(ray_cluster: Connection) -> Iterator[None]:
    wait_for_lost_nodes()
    with ray_node(gcs_address(), num_cpus=4):
        yield


def raylet_of(pid: int) -> int:
    """Returns the pid of the node that started a task's process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.usefixtures("large_node")
class TestBesideALargeNode:
    @pytest.fixture(autouse=True)
    def only_the_drivers_node(self) -> None:
        """There is one more, for all these tests."""

    def test_log_of_a_task_killed_on_another_node_is_salvaged_there(
        self, ray_cluster: Connection, start: Start, wait_until: WaitUntil
    ) -> None:
        assert sorted(host.num_cpus for host in probe_inventory(ray_cluster).hosts) == [4.0, 6.0]
        drive = start(make_plan(1, num_cpus=ONLY_THERE, steps=3000))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
        os.kill(drive.statuses["worker/0"].pid, signal.SIGKILL)
        wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
        failure = drive.statuses["worker/0"].failure
        assert "was killed by SIGKILL, not by the kernel's OOM killer" in failure.message
        assert "worker/0 native " in str(failure.log_end).splitlines()[-1]
        drive.group.stop()
        assert drive.log("worker/0").splitlines()[:2] == ["worker/0 warms up", "worker/0 step 0"]
        assert list(scratch_root().iterdir()) == []

    def test_log_of_a_worker_replaced_on_another_node_is_salvaged_there(
        self, start: Start, wait_until: WaitUntil
    ) -> None:
        drive = start(make_ps_plan(1, cpus_per_worker=ONLY_THERE))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0", "chief/0", "ps/0"))
        os.kill(drive.statuses["worker/0"].pid, signal.SIGKILL)
        wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.FAILED)
        drive.group.replace(TaskId.parse("worker/0"))
        wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.RUNNING)
        wait_until(lambda: len([p for p in scratch_root().iterdir() if "worker-0" in p.name]) == 1)
        drive.group.stop()
        assert drive.log("worker/0").splitlines().count("worker/0 warms up") == 2

    def test_tasks_stay_away_from_a_node_to_be_avoided(
        self, ray_cluster: Connection, start: Start, wait_until: WaitUntil
    ) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        plan = dataclasses.replace(make_plan(3, num_cpus=1.0, steps=100_000), avoid=(here,))
        drive = start(plan)
        tasks = ("worker/0", "worker/1", "worker/2")
        wait_until(lambda: drive.all_in(TaskState.RUNNING, *tasks))
        assert here not in {hello.node_id for hello in drive.group._ledger.hellos.values()}
        drive.group.stop()

    def test_task_on_a_node_that_is_drained_has_to_leave(self, start: Start, wait_until: WaitUntil) -> None:
        """The last: nothing is placed there afterwards."""
        drive = start(make_plan(1, num_cpus=ONLY_THERE, steps=100_000))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
        drain(drive.group._ledger.hellos[TaskId.parse("worker/0")].node_id)
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0") and drive.statuses["worker/0"].leaving)
        assert drive.statuses["worker/0"].leaving == "its host is drained"
        drive.group.stop()


@pytest.mark.usefixtures("equal_node")
class TestBesideAnEqualNode:
    @pytest.fixture(autouse=True)
    def only_the_drivers_node(self) -> None:
        """There is one more, for all these tests."""

    def test_parameter_servers_are_spread_over_the_nodes(self, start: Start, wait_until: WaitUntil) -> None:
        drive = start(make_ps_plan(num_ps=2, cpus_per_worker=1.0, cpus_per_ps=1.0))
        tasks = ("chief/0", "worker/0", "worker/1", "ps/0", "ps/1")
        wait_until(lambda: drive.all_in(TaskState.RUNNING, *tasks))
        assert len({raylet_of(drive.statuses[ps].pid) for ps in ("ps/0", "ps/1")}) == 2
        drive.group.stop()

    def test_parameter_servers_without_cpus_are_spread_as_well(
        self, start: Start, wait_until: WaitUntil
    ) -> None:
        # Ray spreads over the nodes that have told what they have.
        wait_until(lambda: len(free_resources()) == 2)
        drive = start(make_ps_plan(num_ps=2, cpus_per_ps=0.0))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "ps/0", "ps/1"))
        assert len({raylet_of(drive.statuses[ps].pid) for ps in ("ps/0", "ps/1")}) == 2
        drive.group.stop()


def test_worker_whose_node_is_gone_waits_for_room_and_then_comes_back(
    start: Start, wait_until: WaitUntil
) -> None:
    plan = make_ps_plan(1, cpus_per_worker=ONLY_THERE)
    worker, others = TaskId.parse("worker/0"), ("chief/0", "ps/0")
    with ray_node(gcs_address(), num_cpus=6, is_lost=True):
        drive = start(plan)
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0", *others))
        pid = drive.statuses["worker/0"].pid
    wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.FAILED)
    failure = drive.statuses["worker/0"].failure
    assert failure.kind is FailureKind.LOST
    drive.group.replace(worker)
    # Ray counts on the node for some seconds more, and then ends what was to run there.
    wait_until(lambda: drive.poll() or drive.statuses["worker/0"].incarnation == 1)
    drive.group.replace(worker)
    step = drive.statuses["chief/0"].step
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *others) and drive.statuses["chief/0"].step > step)
    assert drive.state("worker/0") is TaskState.FAILED
    with ray_node(gcs_address(), num_cpus=6):
        wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.RUNNING)
        assert (drive.statuses["worker/0"].incarnation, drive.statuses["worker/0"].pid != pid) == (2, True)
        drive.group.stop()
    sweep(scratch_root(), stale_after_s=-1)  # a lost host keeps its folder until its next task


def test_stop_while_a_worker_has_no_room_leaves_nothing(start: Start, wait_until: WaitUntil) -> None:
    with ray_node(gcs_address(), num_cpus=6, is_lost=True):
        drive = start(make_ps_plan(1, cpus_per_worker=ONLY_THERE))
        wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0", "chief/0", "ps/0"))
    wait_until(lambda: drive.poll() or drive.state("worker/0") is TaskState.FAILED)
    drive.group.replace(TaskId.parse("worker/0"))
    drive.poll(timeout_s=0.5)
    drive.group.stop()
    sweep(scratch_root(), stale_after_s=-1)


def node_of(placement: Placement, task: TaskId) -> str:
    """Returns the id of the node where an actor for the task is started."""
    import ray

    where = ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id())
    return str(
        ray.get(where.options(scheduling_strategy=placement.strategy_for(task, node_id=None)).remote())
    )


def test_task_is_moved_to_another_node_only_where_there_is_room(ray_cluster: Connection) -> None:
    worker, one_cpu = TaskId.parse("worker/0"), Resources(num_cpus=1)
    (home,) = [str(host.node_id) for host in probe_inventory(ray_cluster).hosts]
    placement = Placement.request({worker: one_cpu}, spread=None)
    try:
        placement.move(worker, one_cpu, away_from=[home])
        assert node_of(placement, worker) == home
        with ray_node(gcs_address(), num_cpus=1):
            placement.move(worker, Resources(num_cpus=2), away_from=[home])
            assert node_of(placement, worker) == home
            placement.move(worker, one_cpu, away_from=[home])
            assert node_of(placement, worker) != home
    finally:
        placement.remove()


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


def test_host_with_another_disk_at_the_same_path_is_named_before_anything_starts(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    proof = StorageProof.leave(storage_uri=str(tmp_path), run="run")
    with ray_node(gcs_address(), num_cpus=6, behind=behind_another_disk(tmp_path)):
        drive = start(make_plan(2, num_cpus=4.0, steps=3000), proof=proof)
        with pytest.raises(StorageError) as caught:
            wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0", "worker/1"))
        wait_until(lambda: len(list(scratch_root().iterdir())) == 1)  # the other host's task is still up
        drive.group.stop()
    host = gcs_address().rpartition(":")[0]
    assert str(caught.value).startswith(
        f"host {host} does not see the storage that the driver writes to: {tmp_path}/run/token is missing"
    )
    assert {status.state for status in drive.statuses.values()} <= {TaskState.STARTING}


def test_full_scratch_disk_is_named_and_final(start: Start, wait_until: WaitUntil, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "big.bin").write_bytes(os.urandom(400_000))
    code = pack(tmp_path / "code")
    with (
        mounted_disk(tmp_path / "scratch", size="256k") as scratch,
        ray_node(gcs_address(), num_cpus=6, TMPDIR=str(scratch)),
    ):
        drive = start(make_plan(1, num_cpus=ONLY_THERE), code=code)
        wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
        drive.group.stop()
    failure = drive.statuses["worker/0"].failure
    assert (failure.kind, failure.traceback) == (FailureKind.STORAGE, None)
    host = gcs_address().rpartition(":")[0]
    assert failure.message.startswith(f"host {host} cannot unpack the job's code into {scratch}/raydist-")
    assert "No space left on device; free some space there, or point TMPDIR" in failure.message


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


def elastic_plan(num_workers: int) -> Plan:
    plan = make_plan(num_workers, num_cpus=2.0)
    workers = WorkerRange(minimum=1, maximum=4)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, workers=workers))


def test_elastic_attempt_is_fitted_to_the_nodes_and_sees_new_ones(
    ray_cluster: Connection, start: Start, wait_until: WaitUntil
) -> None:
    launcher = RayLauncher(
        elastic_plan(1), LaunchSpec(connection=ray_cluster, storage_uri="unused", run_uri="unused")
    )
    plan = launcher.replan(avoid=frozenset())
    assert plan.num_workers == 2  # the driver's node has 4 CPUs
    drive = start(dataclasses.replace(plan, job=dataclasses.replace(plan.job, params={"steps": 100_000})))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0", "worker/1"))
    assert launcher.room(plan, is_placed=True) == 2
    with ray_node(gcs_address(), num_cpus=3):
        wait_until(lambda: launcher.room(plan, is_placed=True) == 3)
        drive.group.stop()
        wait_until(lambda: launcher.replan(avoid=frozenset()).num_workers == 3)


def signal_from_elsewhere(pid: int, host: str, *, run: str = "run") -> str:
    """Kills a task as the command line of a host would on which it does not run; returns what that says."""
    code = (
        "import sys; from raydist.runtime.cluster import signals; from raydist.errors import ClusterError\n"
        "from raydist.spec.tasks import TaskId\n"
        "signals._is_here = lambda host: False\n"
        "pid, run, host, address = sys.argv[1:]\n"
        "place = {'task': TaskId.parse('worker/0'), 'host': host, 'address_of': lambda: address}\n"
        "try: signals.signal_task(int(pid), 9, run=run, **place)\n"
        "except ClusterError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(pid), run, host, gcs_address()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout.strip()


def test_task_of_another_host_gets_its_signal_there(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(1, steps=3000))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/0"))
    status = drive.statuses["worker/0"]
    assert signal_from_elsewhere(status.pid, "10.9.9.9") == "Ray knows no living host 10.9.9.9"
    stranger = "process {} of host {} is no longer worker/0 of run {}".format
    assert signal_from_elsewhere(os.getpid(), status.host) == stranger(os.getpid(), status.host, "run")
    other = signal_from_elsewhere(status.pid, status.host, run="other")
    assert other == stranger(status.pid, status.host, "other")
    assert signal_from_elsewhere(status.pid, status.host) == ""
    wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
    failure = drive.statuses["worker/0"].failure
    assert failure.kind is FailureKind.LOST
    drive.group.stop()
