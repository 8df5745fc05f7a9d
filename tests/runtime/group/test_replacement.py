"""Tasks that die while their group continues, on a real Ray."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayError
from ray.util import placement_group_table

from raydist.errors import ClusterError
from raydist.outcome.status import Command, FailureKind, TaskState, TaskStatus
from raydist.planning.fitting import resized
from raydist.planning.plan import Plan
from raydist.runtime.cluster import ray_internals
from raydist.runtime.host.scratch import scratch_root
from raydist.spec.job import PortRange, WorkerRange
from raydist.spec.tasks import TaskId
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, Start, make_ps_plan

TRAINERS = ("chief/0", "worker/0", "worker/1", "ps/0")
WORKER_1 = TaskId.parse("worker/1")


def kill(drive: Drive, task: str) -> TaskStatus:
    """Kills the task's process from outside; returns what was known of it."""
    status = drive.statuses[task]
    os.kill(status.pid, signal.SIGKILL)
    return status


def is_lost(drive: Drive, task: str, *, incarnation: int = 0) -> bool:
    drive.poll()
    status = drive.statuses[task]
    return status.incarnation == incarnation and status.state is TaskState.FAILED


def is_back(drive: Drive, task: str, *, incarnation: int = 1, state: TaskState = TaskState.RUNNING) -> bool:
    drive.poll()
    status = drive.statuses[task]
    return status.incarnation == incarnation and status.state is state


def lose_and_replace(drive: Drive, task: str, wait_until: WaitUntil, *, incarnation: int = 0) -> TaskStatus:
    """Kills the task's process and replaces it as soon as the group knows; returns what it was."""
    before = kill(drive, task)
    wait_until(lambda: is_lost(drive, task, incarnation=incarnation))
    drive.group.replace(TaskId.parse(task))
    return before


def test_killed_worker_is_replaced_at_its_address_while_the_others_go_on(
    start: Start, wait_until: WaitUntil
) -> None:
    drive = start(make_ps_plan())
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *TRAINERS))
    others = {task: drive.statuses[task] for task in TRAINERS if task != "worker/1"}
    [scratch] = scratch_folders("worker-1")
    before = lose_and_replace(drive, "worker/1", wait_until)
    wait_until(lambda: is_back(drive, "worker/1"))
    # A status may be sent between its first step and its note.
    wait_until(lambda: drive.poll() or "TF_CONFIG" in notes_of(drive.statuses["worker/1"]))

    now = drive.statuses["worker/1"]
    assert (now.address, now.host) == (before.address, before.host)
    assert now.pid != before.pid
    assert notes_of(now)["TF_CONFIG"] == notes_of(before)["TF_CONFIG"]
    for task, status in others.items():
        later = drive.statuses[task]
        assert (later.pid, later.incarnation, later.state) == (status.pid, 0, TaskState.RUNNING)
        assert later.step > status.step
    wait_until(lambda: not scratch.exists())
    assert len(scratch_folders("worker-1")) == 1

    kill(drive, "ps/0")
    wait_until(lambda: is_lost(drive, "ps/0"))
    assert drive.statuses["ps/0"].failure.kind is FailureKind.LOST  # type: ignore[union-attr]
    drive.group.stop()
    lines = drive.log("worker/1").splitlines()
    begins = [index for index, line in enumerate(lines) if line == "worker/1 warms up"]
    assert len(begins) == 2
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        steps = [line for line in lines[begin:end] if line.startswith("worker/1 step")]
        assert steps == [f"worker/1 step {index}" for index in range(len(steps))]


def notes_of(status: TaskStatus) -> dict[str, str]:
    return dict(note.split("=", 1) for note in status.notes)  # type: ignore[misc]


def scratch_folders(task: str) -> list[Path]:
    return [path for path in scratch_root().iterdir() if f"-{task}-" in path.name]


@pytest.mark.slow
def test_worker_that_dies_before_all_train_is_replaced_as_well(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_ps_plan(), runner="tests.support.runners:SlowToTrainRunner")
    wait_until(lambda: drive.poll() or drive.update.all_addressed)
    lose_and_replace(drive, "worker/1", wait_until)
    wait_until(lambda: is_back(drive, "worker/1"))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *TRAINERS))


@pytest.mark.slow
def test_replacement_that_dies_on_its_way_is_lost_and_replaced(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    folder = tmp_path / "incarnations"
    folder.mkdir()
    drive = start(
        make_ps_plan(incarnations=str(folder)), runner="tests.support.runners:SecondIncarnationDiesRunner"
    )
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *TRAINERS))
    lose_and_replace(drive, "worker/1", wait_until)
    wait_until(lambda: is_lost(drive, "worker/1", incarnation=1))
    failure = drive.statuses["worker/1"].failure
    assert failure.kind is FailureKind.LOST
    drive.group.replace(WORKER_1)
    wait_until(lambda: is_back(drive, "worker/1", incarnation=2))


@pytest.mark.slow
def test_port_that_somebody_has_taken_meanwhile_gives_way_to_another(
    start: Start, wait_until: WaitUntil
) -> None:
    drive = start(make_ps_plan(ports=PortRange(low=28751, high=28790)))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *TRAINERS))
    before = kill(drive, "worker/1")
    wait_until(lambda: is_lost(drive, "worker/1"))
    with socket.socket() as thief:
        thief.bind(("", int(str(before.address).rpartition(":")[2])))
        thief.listen()
        drive.group.replace(WORKER_1)
        wait_until(lambda: is_back(drive, "worker/1"))
    now = drive.statuses["worker/1"]
    assert now.address not in (None, before.address)  # of which the chief is told
    drive.group.stop()
    assert not Path(f"/proc/{now.pid}").exists()


@pytest.mark.slow
def test_evaluator_comes_back_at_any_address_and_takes_commands(start: Start, wait_until: WaitUntil) -> None:
    drive = start(make_ps_plan(1, has_evaluator=True))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "worker/0", "ps/0", "evaluator/0"))
    before = lose_and_replace(drive, "evaluator/0", wait_until)
    drive.group.command(Command.FINISH, [TaskId.parse("evaluator/0")])
    wait_until(lambda: is_back(drive, "evaluator/0"))
    wait_until(lambda: drive.poll() or "command=FINISH" in drive.statuses["evaluator/0"].notes)
    wait_until(lambda: drive.poll() or "TF_CONFIG" in notes_of(drive.statuses["evaluator/0"]))
    now = drive.statuses["evaluator/0"]
    assert now.address == f"{now.host}:{notes_of(now)['port']}"
    assert notes_of(now)["TF_CONFIG"] == notes_of(before)["TF_CONFIG"]


@pytest.mark.slow
@pytest.mark.parametrize(("delay_s", "num_stops"), [(0.0, 1), (0.3, 2), (1.0, 1)])
def test_stop_during_a_replacement_leaves_nothing(
    start: Start, wait_until: WaitUntil, num_stops: int, delay_s: float
) -> None:
    drive = start(make_ps_plan(1))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "worker/0", "ps/0"))
    lose_and_replace(drive, "worker/0", wait_until)
    drive.poll(timeout_s=delay_s)
    for _ in range(num_stops):
        drive.group.stop()


@pytest.mark.slow
def test_agent_that_is_killed_before_it_begins_anew_leaves_nothing(
    start: Start, wait_until: WaitUntil
) -> None:
    drive = start(make_ps_plan(1))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "worker/0", "ps/0"))
    kill(drive, "worker/0")
    wait_until(lambda: is_lost(drive, "worker/0"))
    agent = ray_internals.pid_of(
        drive.group.kept.handles[TaskId.parse("worker/0")], node_id=ray.get_runtime_context().get_node_id()
    )
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    drive.group.replace(TaskId.parse("worker/0"))
    drive.group.stop()
    assert not Path(f"/proc/{agent}").exists()
    drive.group.replace(TaskId.parse("worker/0"))  # starts nothing


@pytest.mark.slow
def test_stop_that_is_cut_off_during_a_replacement_is_taken_up_again(
    start: Start, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = start(make_ps_plan(1))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "worker/0", "ps/0"))
    lose_and_replace(drive, "worker/0", wait_until)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("raydist.runtime.group.remains.Remains.gather_here", interrupt)
        with pytest.raises(KeyboardInterrupt):
            drive.group.stop()
    drive.group.stop()


def elastic_ps_plan(num_workers: int) -> Plan:
    plan = make_ps_plan(num_workers, cpus_per_worker=1.5)  # for two there is room
    workers = WorkerRange(minimum=1, maximum=num_workers)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, workers=workers))


def num_rooms() -> int:
    """Returns how many placement groups Ray has, or looks for room for."""
    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


def test_room_of_a_worker_that_is_given_up_is_anothers_and_a_stop_waits_for_none(
    start: Start, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left then (`start` looks for it)."""
    before, plan = num_rooms(), elastic_ps_plan(4)
    drive = start(resized(plan, 1))
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "chief/0", "worker/0", "ps/0"))
    drive.group.add_workers(plan)
    wait_until(lambda: drive.all_in(TaskState.RUNNING, "worker/1"))
    assert num_rooms() == before + 4
    assert [drive.state(f"worker/{index}") for index in (2, 3)] == [TaskState.PENDING] * 2
    kill(drive, "worker/1")
    wait_until(lambda: is_lost(drive, "worker/1"))
    drive.group.remove_workers(dataclasses.replace(plan, given_up=(WORKER_1,)))
    wait_until(lambda: num_rooms() == before + 3)
    wait_until(lambda: TaskState.RUNNING in [drive.poll() or drive.state(f"worker/{n}") for n in (2, 3)])
    steps = drive.statuses["worker/0"].step
    wait_until(lambda: drive.poll() or drive.statuses["worker/0"].step > steps)
    assert drive.state("worker/1") is TaskState.FAILED

    def refuse(*_: object, **options: object) -> None:
        raise RayError("no GCS")

    monkeypatch.setattr("raydist.runtime.cluster.placement.placement_group", refuse)
    with pytest.raises(ClusterError, match="Ray cannot be asked for room for worker/4: no GCS"):
        drive.group.add_workers(dataclasses.replace(elastic_ps_plan(5), given_up=(WORKER_1,)))
    drive.group.stop()
