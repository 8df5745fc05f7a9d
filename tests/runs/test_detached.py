"""Detached runs on a real Ray, without TensorFlow: what outlives what, and that nothing is left."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import ClusterError, MistakeError, SpecError, StorageError, TrainingError
from raydist.outcome.codec import as_plain
from raydist.outcome.status import RunState
from raydist.planning.plan import Plan
from raydist.runs.attached import AttachedRun
from raydist.runtime.cluster.connection import Connection
from raydist.storage.claims import Claim, ClaimStore, this_process
from raydist.storage.filesystem import Storage
from raydist.storage.provenance import CodeRecord
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage, open_run
from tests.conftest import WaitUntil
from tests.runtime.conftest import COUNTING, make_plan
from tests.support.ray_heads import ray_node
from tests.support.records import make_record

SUBMITTER = """
import pickle, sys, time
from raydist.runs.detached import hand_over
from raydist.runtime.cluster.connection import connect
plan, code, runner = pickle.load(sys.stdin.buffer)
with connect(sys.argv[1]) as connection:
    print("up", flush=True)
    hand_over(plan, code=code, address=connection.address, submitted_at_s=time.time(), task_runner=runner)
    print("accepted", flush=True)
    time.sleep(600)
"""


def plan_for(storage: Path, *, name: str = "run", max_failures: int = 0, **params: Any) -> Plan:
    """Returns a plan of two workers that count, for as long as a test may take unless `steps` is given."""
    plan = make_plan(2, **{"steps": 100_000, **params})
    job = dataclasses.replace(
        plan.job, name=name, storage=str(storage), max_failures=max_failures, detach=True
    )
    return dataclasses.replace(plan, job=job)


def hand_over(plan: Plan, connection: Connection, **options: Any) -> AttachedRun:
    from raydist.runs.detached import hand_over

    options = {"code": None, "task_runner": COUNTING, **options}
    hand_over(plan, address=connection.address, submitted_at_s=time.time(), **options)
    return AttachedRun(open_run(plan.job.storage, run=plan.job.name))


def record_of(storage: Path, name: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = as_plain(read_record(open_run(str(storage), run=name)))
    return found


def step_of(attached: AttachedRun, *, attempt: int) -> int:
    """Returns how far the attempt is, which is what its tasks say; 0 for any other attempt."""
    result = attached.status()
    return min(task.steps for task in result.tasks) if result.attempts == attempt + 1 else 0


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kill_controller(storage: Path) -> int:
    pid = int(record_of(storage)["driver"]["pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.fixture(autouse=True)
def nothing_left(no_leaks: None, wait_until: WaitUntil) -> Iterator[None]:
    """No controller stays under the run's name either; `no_leaks` looks at actors, folders and threads."""
    from raydist.runtime.detach.controller_actor import is_running

    yield
    wait_until(lambda: not is_running("run"), timeout_s=15)


def test_run_ends_by_itself_and_leaves_only_its_record(
    ray_cluster: Connection, tmp_path: Path, code: bytes
) -> None:
    attached = hand_over(plan_for(tmp_path, steps=30, imports=["helper"]), ray_cluster, code=code)
    assert attached.status().state in (RunState.STARTING, RunState.RUNNING)
    assert attached.wait(60)
    result = attached.status()
    assert (result.state, result.attempts, result.steps) == (RunState.SUCCEEDED, 1, 30)
    assert "helper=41" in result.notes
    assert record_of(tmp_path)["spec"]["detach"] is True


@pytest.mark.slow
def test_controller_keeps_the_code_and_runs_the_end_command(
    ray_cluster: Connection, tmp_path: Path, code: bytes, wait_until: WaitUntil
) -> None:
    plan, told = plan_for(tmp_path, steps=30, imports=["helper"]), tmp_path / "told"
    plan = dataclasses.replace(plan, job=dataclasses.replace(plan.job, on_end=f"cat > {told}; exit 3"))
    traced = CodeRecord(digest="d", num_bytes=1, commit="c0ffee", omitted=("helper.py",))
    attached = hand_over(plan, ray_cluster, code=code, traced=traced)
    assert attached.wait(60)
    wait_until(lambda: "on_end ended with exit code 3" in attached.status().notes, timeout_s=60)
    assert json.loads(told.read_text())["state"] == "SUCCEEDED"
    record = record_of(tmp_path)
    assert (record["state"], record["spec"]["on_end"]) == ("SUCCEEDED", "***")
    assert (record["code"]["commit"], record["code"]["omitted"]) == ("c0ffee", ["helper.py"])
    with zipfile.ZipFile(tmp_path / "run" / record["code"]["file"]) as kept:
        assert kept.namelist() == []
    assert record["versions"]["ray"] == metadata.version("ray")
    [hosts] = record["environment"]["hosts"]
    assert list(hosts["hosts"].values()) == [socket.gethostname()]


@pytest.fixture
def code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from raydist.runtime.task.code_archive import pack

    folder = tmp_path_factory.mktemp("code")
    (folder / "helper.py").write_text("VALUE = 41\n")
    return pack(folder)


@pytest.mark.slow
def test_code_that_was_replaced_on_storage_is_not_run(
    ray_cluster: Connection, tmp_path: Path, code: bytes, wait_until: WaitUntil
) -> None:
    attached = hand_over(plan_for(tmp_path, imports=["helper"]), ray_cluster, code=code)
    wait_until(lambda: step_of(attached, attempt=0) >= 3)
    [stored] = (tmp_path / "run").glob("code-*.zip")
    executed = tmp_path / "executed"
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("helper.py", f"VALUE = open({str(executed)!r}, 'w').write('x')\n")
    kill_controller(tmp_path)
    assert attached.wait(60)
    result = attached.status()
    assert result.state is RunState.FAILED
    assert "has been changed since the run was submitted" in result.error.message
    assert not executed.exists()


@pytest.mark.slow
def test_killed_controller_is_brought_back_and_goes_on_with_a_new_attempt(
    ray_cluster: Connection, tmp_path: Path, code: bytes, wait_until: WaitUntil
) -> None:
    plan = plan_for(tmp_path, steps=400, imports=["helper"])
    attached = hand_over(plan, ray_cluster, code=code)
    wait_until(lambda: step_of(attached, attempt=0) >= 3)
    pids = [task.pid for task in attached.status().tasks]
    killed = kill_controller(tmp_path)
    wait_until(lambda: step_of(attached, attempt=1) >= 3)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert record_of(tmp_path)["driver"]["pid"] != killed
    assert attached.wait(60)
    result = attached.status()
    # --max-failures is 0: a controller's death is nobody's failure.
    assert (result.state, result.attempts, result.steps) == (RunState.SUCCEEDED, 2, 400)
    assert [note for note in result.notes if "does not count as a failure" in note] == [
        "attempt 0 was lost with the run's controller, whose process died; the run was taken up again as "
        "attempt 1, which does not count as a failure"
    ]
    # The code is kept until the end is recorded: a controller that died before that would need it.
    wait_until(lambda: names_in(tmp_path / "run") == ["claims", "events", "logs", "run.json", "token"])
    assert names_in(tmp_path / "run" / "claims") == ["000000.json"]  # the same before and after
    log = (tmp_path / "run" / "logs" / "0" / "worker-0").iterdir()
    assert any("worker/0 step 3" in path.read_text() for path in log)  # salvaged after the tasks' death


@pytest.mark.slow
def test_controller_killed_at_every_moment_of_its_run_brings_it_to_its_end(
    ray_cluster: Connection, tmp_path: Path, wait_until: WaitUntil
) -> None:
    attached = hand_over(plan_for(tmp_path, steps=60), ray_cluster)
    killed = {0}
    for delay_s in (0.0, 0.5, 1.0):
        wait_until(lambda: record_of(tmp_path)["driver"]["pid"] not in killed)
        time.sleep(delay_s)  # what it does then differs from one run of this test to the next
        if attached.is_over:
            break
        killed.add(kill_controller(tmp_path))
    assert attached.wait(90)
    result = attached.status()
    assert (result.state, result.steps) == (RunState.SUCCEEDED, 60)
    assert result.attempts == len(killed)


@pytest.fixture
def submitter(ray_cluster: Connection) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that submit a run and then sleep; kills them in the end."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started: list[subprocess.Popen[bytes]] = []

    def start(plan: Plan, code: bytes | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", SUBMITTER, ray_cluster.address],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        pickle.dump((plan, code, COUNTING), process.stdin)
        process.stdin.close()
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def said(process: subprocess.Popen[bytes]) -> str:
    return process.stdout.readline().decode().strip()


@pytest.mark.slow
def test_run_outlives_its_submitter_and_then_its_controller(
    submitter: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, code: bytes, wait_until: WaitUntil
) -> None:
    # Ray keeps arguments of up to 100 KB itself; a larger one is lost with the process that has passed it.
    process = submitter(plan_for(tmp_path, steps=300, imports=["helper"], table="x" * 500_000), code)
    assert (said(process), said(process)) == ("up", "accepted")
    process.kill()
    process.wait()
    attached = AttachedRun(open_run(str(tmp_path), run="run"))
    wait_until(lambda: step_of(attached, attempt=0) >= 3)
    kill_controller(tmp_path)
    assert attached.wait(90)
    result = attached.status()
    assert (result.state, result.attempts, result.steps) == (RunState.SUCCEEDED, 2, 300)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGKILL, 0.0), (signal.SIGINT, 0.5)], ids=str)
def test_submitter_ended_while_it_submits_leaves_a_run_or_nothing(
    submitter: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    code: bytes,
    number: signal.Signals,
    delay_s: float,
    wait_until: WaitUntil,
) -> None:
    from raydist.runtime.detach.controller_actor import is_running

    process = submitter(plan_for(tmp_path, steps=30, imports=["helper"]), code)
    assert said(process) == "up"
    time.sleep(delay_s)  # the moment is not to be the same in each run of this test
    process.send_signal(number)
    process.wait()
    wait_until(lambda: not is_running("run"), timeout_s=240)
    if (tmp_path / "run").exists():
        assert record_of(tmp_path)["state"] in ("SUCCEEDED", "CANCELLED")


def test_stop_cancels_the_run_and_its_controller_ends(
    ray_cluster: Connection, tmp_path: Path, wait_until: WaitUntil
) -> None:
    attached = hand_over(plan_for(tmp_path), ray_cluster)
    wait_until(lambda: step_of(attached, attempt=0) >= 1)
    attached.request_stop()
    assert attached.wait(60)
    assert attached.status().state is RunState.CANCELLED
    attached.request_stop()  # harmless


@pytest.mark.slow
def test_name_of_a_run_that_goes_on_is_refused(
    ray_cluster: Connection, tmp_path: Path, wait_until: WaitUntil
) -> None:
    attached = hand_over(plan_for(tmp_path / "one"), ray_cluster)
    with pytest.raises(SpecError, match="a detached run of that name is running in this Ray"):
        hand_over(plan_for(tmp_path / "two"), ray_cluster)
    assert not (tmp_path / "two").exists()
    assert attached.status().state in (RunState.STARTING, RunState.RUNNING)
    attached.request_stop()
    assert attached.wait(60)


@pytest.mark.slow
def test_refusal_of_the_controllers_host_comes_out_at_the_submitter(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot write"):
        hand_over(plan_for(tmp_path / "file"), ray_cluster)
    (tmp_path / "runs" / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(SpecError, match="choose another --name"):
        hand_over(plan_for(tmp_path / "runs"), ray_cluster)


@pytest.mark.slow
def test_function_that_closes_over_much_is_refused(ray_cluster: Connection, tmp_path: Path) -> None:
    with pytest.raises(MistakeError, match="put data into a file"):
        hand_over(plan_for(tmp_path, table=os.urandom(9 * 2**20)), ray_cluster)


def launch_of(plan: Plan, *, code: bytes = b"zip") -> bytes:
    from raydist.runs.detached import Launch
    from raydist.runtime.host.software import installed_versions

    return pickle.dumps(
        Launch(
            plan=plan,
            code_digest=hashlib.sha256(code).hexdigest(),
            owner="0badcafe",
            address="unused",
            submitted_at_s=time.time(),
            versions=installed_versions(),
        )
    )


@pytest.mark.slow
def test_controller_brought_back_after_the_end_just_ends(tmp_path: Path) -> None:
    from raydist.runs.detached import DetachedController
    from raydist.storage.run_record import RunRecordStore

    storage = open_run(str(tmp_path), run="run")
    driver = {"host": "h", "pid": 7, "start": None, "actor": "run", "address": "unused", "id": "0badcafe"}
    RunRecordStore(storage).replace(make_record(storage, state="SUCCEEDED", driver=driver))
    storage.write_bytes(storage.code("0badcafe"), b"zip")
    before = (tmp_path / "run" / "run.json").read_bytes()
    DetachedController(launch_of(plan_for(tmp_path))).run(is_revived=True)
    assert names_in(tmp_path / "run") == ["run.json"]
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.slow
def test_controller_killed_before_its_first_record_leaves_nothing_of_it(tmp_path: Path) -> None:
    from raydist.runs.detached import DetachedController

    storage = open_run(str(tmp_path), run="run")
    claim(storage, number=0, id_="0badcafe")
    storage.write_bytes(storage.code("0badcafe"), b"zip")
    controller = DetachedController(launch_of(plan_for(tmp_path)))
    controller.stop()  # instead of waiting for a submitter who is gone
    controller.run(is_revived=True)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(controller.begin(None), TrainingError)


def claim(storage: Storage, *, number: int, id_: str) -> None:
    holder = {**this_process(), "actor": "run", "address": "unused"}
    made = Claim(number=number, id=id_, holder=holder, at_s=time.time())
    assert ClaimStore(RunStorage(storage, run="run")).add(made)


@pytest.mark.slow
def test_controller_brought_back_after_its_run_was_resumed_leaves_it_alone(tmp_path: Path) -> None:
    from raydist.runs.detached import DetachedController
    from raydist.storage.run_record import RunRecordStore

    storage = open_run(str(tmp_path), run="run")
    claim(storage, number=0, id_="0badcafe")
    storage.write_bytes(storage.code("0badcafe"), b"zip")
    # The one that has resumed it is about to write its first record.
    claim(storage, number=1, id_="another")
    driver = {**this_process(), "id": "0badcafe"}
    RunRecordStore(storage).replace(make_record(storage, state="RUNNING", claim=0, driver=driver))
    before = (tmp_path / "run" / "run.json").read_bytes()
    controller = DetachedController(launch_of(plan_for(tmp_path)))
    controller.run(is_revived=True)
    assert controller.begin(None) is None
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert names_in(tmp_path / "run") == ["claims", "run.json"]


@pytest.mark.slow
def test_name_that_another_process_has_claimed_is_refused_by_the_controllers_host(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    claim(Storage.open(str(tmp_path)), number=0, id_="another")
    with pytest.raises(SpecError, match=f"driven by process {os.getpid()} of host .*, in the Ray at unused"):
        hand_over(plan_for(tmp_path), ray_cluster)
    assert names_in(tmp_path / "run") == ["claims"]


@pytest.mark.slow
def test_other_versions_on_the_controllers_host_are_refused(tmp_path: Path) -> None:
    from raydist.runs.detached import DetachedController

    launch = pickle.loads(launch_of(plan_for(tmp_path)))
    other = dataclasses.replace(launch, versions={**launch.versions, "raydist": "9.9.9"})
    controller = DetachedController(pickle.dumps(other))
    thread = threading.Thread(target=lambda: controller.run(is_revived=False))
    thread.start()
    problem = controller.begin(None)
    assert isinstance(problem, ClusterError)
    assert "the driver has raydist 9.9.9" in str(problem)
    controller.stop()
    thread.join(30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_controller_lives_on_the_head(ray_cluster: Connection, tmp_path: Path, wait_until: WaitUntil) -> None:
    import ray
    from ray._private import state

    head = ray.get_runtime_context().get_node_id()
    with ray_node(ray_cluster.address, num_cpus=4):
        for number in range(4):  # by chance it would be there, too, at every second try
            attached = hand_over(plan_for(tmp_path, name=f"run-{number}"), ray_cluster)
            pid = record_of(tmp_path, f"run-{number}")["driver"]["pid"]
            # Of the living: Ray lists the dead, too, and the kernel gives pids again.
            living = [actor for actor in state.actors().values() if actor["State"] == "ALIVE"]
            assert [actor["Address"]["NodeID"] for actor in living if actor["Pid"] == pid] == [head]
            attached.request_stop()
            assert attached.wait(60)
        wait_until(lambda: not is_any_running(4))


def is_any_running(count: int) -> bool:
    from raydist.runtime.detach.controller_actor import is_running

    return any(is_running(f"run-{number}") for number in range(count))
