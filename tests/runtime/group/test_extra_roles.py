"""Extra roles beside the tasks of a group, on a real Ray."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from raydist.errors import RaydistError, SpecError, TaskFailedError
from raydist.outcome.status import TaskState
from raydist.planning.plan import Plan
from raydist.runtime.host.scratch import scratch_root
from raydist.runtime.task.code_archive import pack
from raydist.spec.tasks import ExtraRole, ExtraTask, Resources, parse_any_task
from raydist.storage.filesystem import Storage
from raydist.storage.logs import list_log_tasks, read_log
from raydist.storage.run_storage import RunStorage
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, Start, make_plan

# Tells its processes and what it was given, and stays. It has a child in a session of its own.
SERVE = """
import os, subprocess, sys, time
if len(sys.argv) > 2:
    time.sleep(600)
child = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "child"], start_new_session=True)
names = ("RAYDIST_RUN", "RAYDIST_ROLE", "RAYDIST_INDEX", "COLOUR", "TF_CONFIG")
print("served", [os.environ.get(name) for name in names], os.path.exists("beside.txt"), flush=True)
with open(f"{sys.argv[1]}/pids-{os.environ['RAYDIST_INDEX']}.part", "w") as told:
    told.write(f"{os.getpid()} {child.pid}")
os.rename(told.name, told.name.removesuffix(".part"))
time.sleep(600)
"""


def with_role(plan: Plan, *command: str, **fields: Any) -> Plan:
    resources = Resources(num_cpus=0.5, memory_bytes=1)
    role = ExtraRole(name="features", command=command, resources=resources, **fields)
    job = dataclasses.replace(plan.job, roles={"features": role}, env={"COLOUR": "red"})
    return dataclasses.replace(plan, job=job)


def pack_code(folder: Path, program: str) -> bytes:
    folder.mkdir()
    (folder / "serve.py").write_text(program)
    (folder / "beside.txt").write_text("")
    return pack(folder)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def pids_in(folder: Path, index: int) -> list[int]:
    return [int(pid) for pid in (folder / f"pids-{index}").read_text().split()]


def log_of(folder: Path, task: str) -> str:
    storage = RunStorage(Storage.open(str(folder)), run="run")
    return read_log(storage, task=parse_any_task(task), attempt=0)


def error_of(drive: Drive, wait_until: WaitUntil) -> RaydistError:
    found: list[RaydistError] = []

    def is_raised() -> bool:
        try:
            drive.poll()
        except RaydistError as error:
            found.append(error)
        return bool(found)

    wait_until(is_raised)
    return found[0]


def test_role_serves_while_the_tasks_run_and_leaves_nothing(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    plan = with_role(
        make_plan(2, num_cpus=0.5, steps=5, shows=["RAYDIST_HOSTS_FEATURES", "COLOUR"]),
        *("python", "serve.py", str(tmp_path)),
        num_tasks=2,
    )
    drive = start(plan, code=pack_code(tmp_path / "code", SERVE))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0", "worker/1"))
    for task in ("worker/0", "worker/1"):
        host = drive.statuses[task].host
        assert f"RAYDIST_HOSTS_FEATURES={host},{host}" in drive.statuses[task].notes
    wait_until(lambda: (tmp_path / "pids-0").exists() and (tmp_path / "pids-1").exists())
    pids = [*pids_in(tmp_path, 0), *pids_in(tmp_path, 1)]
    assert not any(map(is_gone, pids))
    drive.group.stop()
    assert all(map(is_gone, pids))
    assert list(scratch_root().iterdir()) == []
    assert "served ['run', 'features', '1', 'red', None] True\n" in log_of(tmp_path, "features/1")
    stored = list_log_tasks(RunStorage(Storage.open(str(tmp_path)), run="run"))
    assert [str(task) for _, task in stored] == ["features/0", "features/1", "worker/0", "worker/1"]


@pytest.mark.slow
def test_role_that_ends_is_a_failure_with_its_exit_code_and_log(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    program = "import sys; print('one'); sys.exit('the port is taken')"
    plan = with_role(make_plan(1, num_cpus=0.5, steps=100_000), "python", "serve.py")
    error = error_of(start(plan, code=pack_code(tmp_path / "code", program)), wait_until)
    assert isinstance(error, TaskFailedError)
    assert error.task == "features/0"
    assert "features/0 ended by itself on " in str(error)
    assert "`python serve.py` ended with exit code 1; the end of its log: " in str(error)
    assert "the port is taken" in str(error)


@pytest.mark.slow
def test_role_that_ends_well_is_a_note(start: Start, wait_until: WaitUntil, tmp_path: Path) -> None:
    plan = with_role(make_plan(1, num_cpus=0.5, steps=200), "python", "-c", "print('done')")
    drive = start(plan, code=None)
    notes: list[str] = []

    def has_note() -> bool:
        drive.poll()
        notes[:] = drive.update.notes
        return bool(notes)

    wait_until(has_note)
    assert len(notes) == 1
    assert "ended with exit code 0, before the run did" in notes[0]
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))


def test_program_that_does_not_exist_is_a_mistake(start: Start, wait_until: WaitUntil) -> None:
    drive = start(with_role(make_plan(1, num_cpus=0.5), "no-such-program", "--x"))
    error = error_of(drive, wait_until)
    assert isinstance(error, SpecError)
    assert "features/0 cannot start `no-such-program --x` on " in str(error)
    assert "No such file or directory: no-such-program" in str(error)


MAY_FAIL = {
    "at once": (("python", "-c", "raise SystemExit('no data')"), "the end of its log: no data"),
    "no program": (("no-such-program",), "No such file or directory: no-such-program; in roles.features"),
    "killed": (("sleep", "600"), "features/0 was lost on "),
    "killed before it runs": (("sleep", "600"), "features/0 was lost"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", MAY_FAIL)
def test_tasks_train_on_without_a_role_that_may_fail(how: str, start: Start, wait_until: WaitUntil) -> None:
    command, sentence = MAY_FAIL[how]
    plan = make_plan(1, num_cpus=0.5, steps=200, shows=["RAYDIST_HOSTS_FEATURES"])
    drive = start(with_role(plan, *command, may_fail=True), code=None)
    extras = drive.group._actors.extras
    if how == "killed before it runs":
        ray.kill(extras._handles[ExtraTask(role="features", index=0)])
    if how == "killed":
        wait_until(lambda: drive.poll() or extras.all_started)
        [hello] = extras._hellos.values()
        os.kill(hello.pid, signal.SIGKILL)
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0") and drive.update.notes)
    [note] = drive.update.notes
    assert note.endswith("; the run continues without it")
    assert sentence in note
    host = "" if how == "killed before it runs" else drive.statuses["worker/0"].host
    assert f"RAYDIST_HOSTS_FEATURES={host}" in drive.statuses["worker/0"].notes


@pytest.mark.slow
def test_role_whose_actor_is_killed_is_lost_and_its_command_ends(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    plan = with_role(make_plan(1, num_cpus=0.5, steps=100_000), "python", "serve.py", str(tmp_path))
    drive = start(plan, code=pack_code(tmp_path / "code", SERVE))
    wait_until(lambda: drive.poll() or (tmp_path / "pids-0").exists())
    [hello] = drive.group._actors.extras._hellos.values()
    os.kill(hello.pid, signal.SIGKILL)
    error = error_of(drive, wait_until)
    assert isinstance(error, TaskFailedError)
    assert str(error).startswith(f"features/0 was lost on {hello.host}: ")
    wait_until(lambda: all(map(is_gone, pids_in(tmp_path, 0))))


def folders() -> set[Path]:
    """Returns the scratch folders of extra roles; those of tasks have other names."""
    return set(scratch_root().glob("*features*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at once", "folder", "command"])
def test_stopped_group_leaves_no_command(
    start: Start, wait_until: WaitUntil, tmp_path: Path, moment: str
) -> None:
    before = folders()
    plan = with_role(make_plan(1, num_cpus=0.5, steps=100_000), "python", "serve.py", str(tmp_path))
    drive = start(plan, code=pack_code(tmp_path / "code", SERVE))
    if moment == "folder":
        wait_until(lambda: folders() - before)
    elif moment == "command":
        wait_until(lambda: (tmp_path / "pids-0").exists())  # which the group has not heard of yet
    drive.group.stop()
    drive.group.stop()
    if (tmp_path / "pids-0").exists():
        wait_until(lambda: all(map(is_gone, pids_in(tmp_path, 0))))
    else:
        assert moment != "command"
