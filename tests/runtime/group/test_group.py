"""A group on a real Ray: from the first process to the last result."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ray

from raydist.errors import ClusterError
from raydist.outcome.status import Command, FailureKind, TaskState
from raydist.runtime.host.scratch import scratch_root, spool_path
from raydist.runtime.task.code_archive import pack
from raydist.spec.job import PortRange
from raydist.spec.tasks import TaskId
from tests.conftest import WaitUntil
from tests.runtime.conftest import COUNTING, Drive, Start, make_plan, make_ps_plan, starting

BOTH = ("worker/0", "worker/1")


def notes_of(drive: Drive, task: str) -> dict[str, str]:
    return dict(note.split("=", 1) for note in drive.statuses[task].notes)  # type: ignore[misc]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def until_finished(drive: Drive) -> Drive:
    deadline_s = time.monotonic() + 90
    while not drive.all_in(TaskState.FINISHED, *BOTH):
        assert time.monotonic() < deadline_s
    return drive


@pytest.fixture(scope="module")
def finished(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """A group whose two tasks have come to their end."""
    code = tmp_path_factory.mktemp("code")
    # `mailcap` is a module of Python's own library, which the user's one has to hide.
    (code / "mailcap.py").write_text("VALUE = open('beside.txt').read()")
    (code / "beside.txt").write_text("read by its relative name")
    (code / "inner").mkdir()
    (code / "inner" / "place.py").write_text("VALUE = f'{__file__}:1'")
    plan = make_plan(steps=5, imports=["mailcap", "inner.place"], ports=PortRange(low=28711, high=28730))
    with starting(ray_cluster, tmp_path_factory.mktemp("storage")) as start_group:
        return until_finished(start_group(plan, code=pack(code)))


def test_group_runs_every_task_to_its_end(finished: Drive) -> None:
    assert [finished.statuses[task].step for task in BOTH] == [5, 5]
    assert len({finished.statuses[task].pid for task in BOTH} | {os.getpid()}) == 3
    assert finished.update.all_placed
    assert finished.update.all_addressed
    timings = dict(finished.update.timings)
    assert 0 < timings["placement"] <= timings["tasks_ready"]


def test_tasks_get_the_cluster_of_their_leased_addresses(finished: Drive) -> None:
    addresses = [finished.statuses[task].address for task in BOTH]
    assert len(set(addresses)) == 2
    for index, task in enumerate(BOTH):
        told = json.loads(notes_of(finished, task)["TF_CONFIG"])
        assert told == {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        assert addresses[index] == f"{finished.statuses[task].host}:{notes_of(finished, task)['port']}"


def test_ports_come_from_the_range(finished: Drive) -> None:
    ports = {int(notes_of(finished, task)["port"]) for task in BOTH}
    assert len(ports) == 2
    assert ports <= set(range(28711, 28731))


def test_runner_runs_in_the_main_thread(finished: Drive) -> None:
    assert notes_of(finished, "worker/0")["main"] == "True"


def test_working_dir_travels_and_comes_first(finished: Drive) -> None:
    notes = notes_of(finished, "worker/0")
    assert notes["mailcap"] == "read by its relative name"
    assert notes["first_path"] == notes["cwd"]
    assert scratch_root() in Path(notes["cwd"]).parents
    assert notes["inner.place"] == "inner/place.py:1"


def test_logs_hold_what_python_and_native_code_print(finished: Drive) -> None:
    for task in BOTH:
        expected = [f"{task} warms up"]
        expected += [f"{task} {what} {step}" for step in range(5) for what in ("step", "native")]
        assert finished.log(task).splitlines() == expected


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls by which this thread has waited for an answer of Ray's."""
    seen: list[str] = []

    def spied(name: str, call: Callable[..., Any], is_wait: Callable[..., bool]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and is_wait(*args):
                seen.append(name)
            return call(*args, **options)

        return counting

    for name in ("get", "wait"):
        monkeypatch.setattr(ray, name, spied(name, getattr(ray, name), lambda *args: True))
    result = spied("result", Future.result, lambda future, *args: not future.done())
    monkeypatch.setattr(Future, "result", result)
    return seen


@pytest.mark.slow
def test_driver_waits_for_many_tasks_as_often_as_for_few(
    start: Start, wait_until: WaitUntil, waits: list[str]
) -> None:
    numbers = []
    for num_tasks in (2, 4):
        waits.clear()
        plan = make_plan(num_tasks, num_cpus=0.0, steps=100_000)
        drive = start(plan)
        tasks = [str(task) for task in plan.tasks]
        wait_until(lambda drive=drive, tasks=tasks: drive.all_in(TaskState.RUNNING, *tasks), timeout_s=120)
        numbers.append(len(waits))
        assert drive.update.all_placed  # without a CPU as well
        drive.group.stop()
    assert numbers[0] == numbers[1], waits


@pytest.mark.slow
def test_tasks_leave_parcels_and_claim_work_past_storage(start: Start) -> None:
    drive = until_finished(start(make_plan(), runner="tests.support.runners:ParcelRunner"))
    assert notes_of(drive, "worker/1")["parcel"] == "secret of worker/0"
    assert notes_of(drive, "worker/1")["large"] == "1000000"
    claims = [json.loads(notes_of(drive, task)["claims"]) for task in BOTH]
    assert sorted(claims[0] + claims[1]) == list(range(6))  # each is another number


@pytest.mark.slow
def test_group_that_trains_is_asked_commanded_signalled_and_stopped(
    start: Start, wait_until: WaitUntil
) -> None:
    drive = start(make_plan(steps=100_000))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH))
    steps: set[int] = set()

    def has_progress() -> bool:
        drive.poll()
        steps.add(drive.statuses["worker/0"].step)
        return len(steps) >= 3

    wait_until(has_progress)
    assert drive.statuses["worker/0"].metrics == {"loss": 1.0 / (1 + drive.statuses["worker/0"].step)}

    drive.group.command(Command.SAVE, [TaskId.parse("worker/1")])
    wait_until(lambda: drive.poll() or "command=SAVE" in drive.statuses["worker/1"].notes)
    assert "command=SAVE" not in drive.statuses["worker/0"].notes
    drive.group.command(Command.DUMP_STACKS)
    wait_until(lambda: all("in _count" in drive.log(task) for task in BOTH))

    os.kill(drive.statuses["worker/1"].pid, signal.SIGTERM)
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH) and drive.statuses["worker/1"].leaving)
    step = drive.statuses["worker/1"].step
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH) and drive.statuses["worker/1"].step > step)
    assert (drive.statuses["worker/0"].leaving, drive.statuses["worker/1"].leaving) == (None, "SIGTERM")

    known = {task: drive.statuses[task].step for task in BOTH}
    num_dumps = {task: drive.log(task).count("most recent call first") for task in BOTH}
    time.sleep(0.7)  # longer than two pushes are apart
    drive.group.command(Command.DUMP_STACKS)  # before the stop that follows
    drive.group.stop()
    last = {str(status.task): status for status in drive.group.last_update().statuses}
    assert all(last[task].step > known[task] for task in BOTH)
    assert [last[task].state for task in BOTH] == [TaskState.RUNNING] * 2
    for task in BOTH:
        assert drive.log(task).count("most recent call first") > num_dumps[task]


@pytest.mark.slow
def test_worker_of_parameter_servers_ends_at_once_by_sigterm(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_ps_plan())
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "ps/0", *BOTH))
    os.kill(drive.statuses["worker/1"].pid, signal.SIGTERM)
    wait_until(lambda: drive.poll() or drive.state("worker/1") is TaskState.FAILED)
    failure = drive.statuses["worker/1"].failure
    assert failure.kind is FailureKind.LOST


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sigkill", "raise", "hang_with_gil"])
def test_what_a_task_that_fails_has_written_is_kept(
    start: Start, wait_until: WaitUntil, tmp_path: Path, how: str
) -> None:
    (tmp_path / "code").mkdir()
    # Enough steps for the other worker to be running when both are looked for.
    plan = make_plan(fail_in="worker/0", how=how, fail_at=100, steps=100_000)
    drive = start(plan, code=pack(tmp_path / "code"), runner="tests.support.runners:WritingRunner")
    if how == "hang_with_gil":
        wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH))
        (scratch_path,) = [path for path in scratch_root().iterdir() if "-worker-0-" in path.name]
        wait_until(lambda: drive.poll() or "native 100" in spool_path(scratch_path).read_text())
    else:
        wait_until(
            lambda: drive.all_in(TaskState.FAILED, "worker/0") and drive.all_in(TaskState.RUNNING, "worker/1")
        )
    drive.group.stop()

    output = tmp_path / "run" / "output"
    kept = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert kept == {"log.csv", "working_dir/model.keras", "worker-1/log.csv"}
    assert (output / "log.csv").read_text() == "worker/0"
    notes = [
        note for status in drive.group.last_update().statuses for note in status.notes if "run keeps" in note
    ]
    said = (
        "the run keeps 1 file (8 B) that the job wrote into its working folder, in output/working_dir: "
        "model.keras"
    )
    assert notes == ([] if how == "sigkill" else [said])


@pytest.mark.slow
def test_range_with_too_few_ports_names_the_range(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(ports=PortRange(low=28731, high=28731), steps=1000))
    with pytest.raises(ClusterError, match="every port of --ports 28731-28731 is in use") as caught:
        wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH))
    assert caught.value.task in BOTH


def test_dead_processes_are_lost_and_exceptions_told_while_the_others_go_on(
    start: Start, wait_until: WaitUntil
) -> None:
    ends = {
        "sigkill": "was killed by SIGKILL",
        "exit": "ended with exit code 7",
        "segfault": "was killed by SIGSEGV",
        "abort": "was killed by SIGABRT",
        "sigterm": "was killed by SIGTERM",
        "native_exit": "ended with exit code 5",
    }
    tasks = {f"worker/{number}": how for number, how in enumerate((*ends, "leak", "raise"), start=1)}
    drive = start(make_plan(1 + len(tasks), num_cpus=0.1, steps=100_000, hows=tasks))
    wait_until(lambda: drive.all_in(TaskState.FAILED, *tasks), timeout_s=120)
    for task, how in tasks.items():
        status, failure = drive.statuses[task], drive.statuses[task].failure
        assert failure is not None
        if how == "leak":  # what a runner lets through
            assert (failure.kind, failure.error_type) == (FailureKind.USER, "RuntimeError")
            continue
        if how == "raise":
            told = (failure.kind, failure.message, failure.step)
            assert told == (FailureKind.USER, "loss is not a number", 3)
            assert "in _raise" in str(failure.traceback)
            continue
        assert failure.kind is FailureKind.LOST
        assert failure.message.startswith(f"its process {status.pid} on {status.host} {ends[how]}")
        assert f"{task} native 3" in str(failure.log_end).splitlines()
    step = drive.statuses["worker/0"].step
    wait_until(lambda: drive.poll() or drive.statuses["worker/0"].step > step)
    assert not drive.state("worker/0").is_terminal
    drive.group.stop()
    for task, how in tasks.items():
        log = drive.log(task).splitlines()
        assert log[log.index(f"{task} step 3") + 1] == f"{task} native 3"
        assert not any("step 4" in line for line in log)
        assert any("nobody caught this" in line for line in log) == (how == "leak")


@pytest.mark.slow
def test_runner_that_cannot_be_imported_fails_the_start(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(1), runner="tests.support.runners:BrokenImportRunner")
    wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
    failure = drive.statuses["worker/0"].failure
    assert (failure.kind, failure.error_type) == (FailureKind.START, "ImportError")
    assert "libcudart" in failure.message
    assert "libcudart" in drive.log("worker/0")


@pytest.mark.slow
def test_crash_in_the_import_is_lost(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(1), runner="tests.support.runners:DeadWarmUpRunner")
    wait_until(lambda: drive.all_in(TaskState.FAILED, "worker/0"))
    assert drive.statuses["worker/0"].failure.kind is FailureKind.LOST  # type: ignore[union-attr]


def test_stop_ends_tasks_that_hang_and_what_user_code_started(start: Start, wait_until: WaitUntil) -> None:
    hows = {"worker/0": "hang", "worker/1": "hang_with_gil"}
    drive = start(make_plan(hows=hows, fail_at=600, steps=3000, child="sleep 600"))
    # A task runs before its child does.
    wait_until(
        lambda: (
            drive.all_in(TaskState.RUNNING, *BOTH) and all("child" in notes_of(drive, task) for task in BOTH)
        )
    )
    children = [int(notes_of(drive, task)["child"]) for task in BOTH]
    assert not any(map(is_gone, children))
    paths = [spool_path(path) for path in scratch_root().iterdir() if "-worker-" in path.name]
    assert len(paths) == 2
    wait_until(lambda: drive.poll() or all("native 600" in path.read_text() for path in paths))
    drive.group.stop()
    assert [is_gone(drive.statuses[task].pid) for task in BOTH] == [True, True]
    assert "worker/1 native 600" in drive.log("worker/1").splitlines()
    wait_until(lambda: all(map(is_gone, children)))
    drive.group.stop()  # once more is harmless
    assert drive.group.poll(timeout_s=0).statuses == ()


def test_stop_before_anything_is_up_leaves_nothing(start: Start) -> None:
    start(make_plan()).group.stop()


@pytest.mark.slow
def test_stop_during_the_import_leaves_nothing(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_plan(1), runner="tests.support.runners:SlowWarmUpRunner")
    wait_until(lambda: drive.all_in(TaskState.STARTING, "worker/0"))
    drive.group.stop()
    assert is_gone(drive.statuses["worker/0"].pid)


def test_group_without_room_waits_and_can_be_stopped(start: Start) -> None:
    drive = start(make_plan(2, num_cpus=3.0))
    drive.poll(timeout_s=1.0)
    assert (drive.update.statuses, drive.update.all_placed) == ((), False)
    drive.group.stop()


@pytest.mark.slow
def test_group_takes_its_place_once_there_is_room(start: Start, wait_until: WaitUntil) -> None:
    first, second = start(make_plan(2, num_cpus=2.0, steps=3000)), start(make_plan(1, num_cpus=2.0))
    wait_until(lambda: first.all_in(TaskState.RUNNING, *BOTH))
    second.poll()
    assert not second.update.all_placed
    first.group.stop()
    wait_until(lambda: second.all_in(TaskState.FINISHED, "worker/0"))


@pytest.mark.slow
def test_group_runs_inside_a_ray_task(ray_cluster: object, no_leaks: None, tmp_path: Path) -> None:
    import ray

    @ray.remote(num_cpus=0)
    def driver() -> dict[str, str]:
        from raydist.runtime.cluster.connection import connect
        from raydist.runtime.group.group import LaunchSpec, RayTaskGroup

        with connect(None) as connection:
            launch = LaunchSpec(
                connection=connection,
                storage_uri=str(tmp_path),
                run_uri=str(tmp_path / "run"),
                runner=COUNTING,
            )
            group = RayTaskGroup.start(make_plan(), launch, attempt=0)
            drive = Drive(group, tmp_path)
            while not drive.all_in(TaskState.FINISHED, *BOTH):
                pass
            group.stop()
            return {task: drive.statuses[task].state.name for task in BOTH}

    assert ray.get(driver.remote(), timeout=60) == {"worker/0": "FINISHED", "worker/1": "FINISHED"}


@pytest.mark.slow
def test_log_that_cannot_be_stored_is_a_note(start: Start, wait_until: WaitUntil, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the way of the run's folder")
    drive = start(make_plan(1, steps=3))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))
    (note,) = [note for note in drive.statuses["worker/0"].notes if "log" in note]
    assert note.startswith(f"the end of worker/0's log is lost: cannot write {tmp_path}/run/")
