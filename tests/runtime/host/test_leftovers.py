"""What tasks of a dead controller left on this host is cleared, and nothing else."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from raydist.runtime.host.ray_session import end_session
from raydist.runtime.host.salvage import clear_here, log_target_of, new_owner
from raydist.runtime.host.scratch import owner_pid, scratch_root
from raydist.spec.tasks import ExtraTask, TaskId
from raydist.storage.filesystem import Storage
from raydist.storage.logs import read_log
from raydist.storage.run_storage import RunStorage
from tests.conftest import WaitUntil
from tests.runtime.host.conftest import start_owner

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.mark.parametrize(
    ("name", "attempt", "task", "incarnation"),
    [
        ("run-0-worker-1-0badcafe-0", 0, "worker/1", 0),
        ("run-12-chief-0-0badcafe-3", 12, "chief/0", 3),
        ("run-0-data-worker-1-0badcafe-0", 0, "data-worker/1", 0),
        ("run-0-0-worker-1-0badcafe-0", None, "", 0),  # of a run named run-0
        ("run-0-worker-1-deadbeef-0", None, "", 0),
        ("other-0-worker-1-0badcafe-0", None, "", 0),
    ],
)
def test_scratch_folder_tells_whose_log_it_holds(
    name: str, attempt: int | None, task: str, incarnation: int
) -> None:
    target = log_target_of(Path("/tmp", name), "0badcafe", storage_uri="/runs", run="run")
    if attempt is None:
        assert target is None
    else:
        assert (target.attempt, str(target.task), target.incarnation) == (attempt, task, incarnation)
        assert (target.storage_uri, target.run) == ("/runs", "run")


@pytest.mark.slow
def test_process_that_outlived_its_controller_is_ended_and_its_log_kept(tmp_path: Path) -> None:
    owner, other = new_owner(), new_owner()
    with (
        start_owner(f"run-1-worker-0-{owner}-0")[0] as theirs,
        start_owner(f"run-1-worker-0-{other}-0")[0] as strange,
    ):
        assert owner_pid(scratch_root() / f"run-1-worker-0-{owner}-0") == theirs.pid
        clear_here(owner, storage_uri=str(tmp_path / "runs"), run="run")
        assert theirs.wait(10) == -signal.SIGKILL
        assert strange.poll() is None
        strange.kill()
    assert [left.name for left in scratch_root().iterdir()] == [f"run-1-worker-0-{other}-0"]
    storage, task = Storage.open(str(tmp_path / "runs")), TaskId.parse("worker/0")
    assert read_log(RunStorage(storage, run="run"), task=task, attempt=1) == "printed before the end\n"


def test_folder_that_tells_no_process_is_known_as_such(tmp_path: Path) -> None:
    assert owner_pid(tmp_path) is None
    (tmp_path / "lock").touch()
    assert owner_pid(tmp_path) is None


def test_folder_of_an_extra_role_is_known_by_its_name() -> None:
    owner = new_owner()
    target = log_target_of(Path(f"run-3-my-features-2-{owner}-0"), owner, storage_uri="/s", run="run")
    assert (target.task, target.attempt) == (ExtraTask(role="my-features", index=2), 3)


def test_raylet_that_has_no_log_yet_ends_with_its_session(tmp_path: Path, wait_until: WaitUntil) -> None:
    session = tmp_path / "session_1"
    session.mkdir()
    command = ["/ray/core/src/ray/raylet/raylet", "-c", "read line; :", f"--socket={session}/sockets/raylet"]
    with subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE) as process:
        # Popen returns a moment before the kernel knows the arguments of the new program.
        wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes)
        end_session(session)
        assert process.wait(timeout=30) == -signal.SIGKILL
