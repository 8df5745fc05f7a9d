from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.salvage import salvage
from raydist.runtime.host.scratch import Scratch, adopted, scratch_root, sweep
from raydist.spec.tasks import TaskId
from raydist.storage.logs import read_log
from raydist.storage.run_storage import open_run
from tests.conftest import WaitUntil
from tests.runtime.host.conftest import start_owner

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


def end(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.wait()


def test_folder_is_for_its_user_only_and_goes_away() -> None:
    scratch = Scratch.create("run-0-worker-0")
    assert scratch.path.parent == scratch_root()
    assert scratch_root().stat().st_mode & 0o777 == 0o700
    scratch.remove()
    scratch.remove()
    assert list(scratch_root().iterdir()) == []


def test_folder_that_others_could_read_is_closed_to_them() -> None:
    before = os.umask(0)
    try:
        scratch_root().mkdir(mode=0o755)
        scratch = Scratch.create("run-0-worker-0")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (scratch_root(), scratch.path)]
    scratch.remove()
    assert modes == [0o700, 0o700]


def test_folder_is_elsewhere_if_its_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_others").mkdir()
    scratch_root().symlink_to(tmp_path / "of_others")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scratch = Scratch.create("run-0-worker-0")
    found, of_others = scratch_root(), list((tmp_path / "of_others").iterdir())
    scratch.remove()
    assert (scratch.path.parent, tmp_path / "cache" in found.parents, of_others) == (found, True, [])


def test_stale_folder_of_a_dead_task_is_swept_by_the_next_task() -> None:
    owner, path = start_owner("dead")
    end(owner)
    an_hour_ago = time.time() - 3600
    for old in (path / "log", path):
        os.utime(old, (an_hour_ago, an_hour_ago))
    scratch = Scratch.create("next")
    assert [left.name for left in scratch_root().iterdir()] == ["next"]
    scratch.remove()


def test_folder_of_a_living_task_is_never_swept() -> None:
    owner, path = start_owner("living")
    try:
        sweep(scratch_root(), stale_after_s=-1)
        assert path.exists()
    finally:
        end(owner)
    sweep(scratch_root(), stale_after_s=-1)
    assert not path.exists()


def test_fresh_folder_of_a_dead_task_is_left_for_its_run_to_salvage() -> None:
    owner, path = start_owner("dead")
    end(owner)
    sweep(scratch_root())
    assert path.exists()


def test_folder_can_be_adopted_once_its_owner_is_dead() -> None:
    owner, path = start_owner("dying")
    with adopted(path, timeout_s=0.1) as is_ours:
        assert not is_ours
    end(owner)
    with adopted(path, timeout_s=5) as is_ours:
        assert is_ours


@pytest.mark.slow
def test_salvage_kills_a_task_that_ray_did_not_and_stores_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr("raydist.runtime.host.salvage._DEATH_TIMEOUT_S", 0.2)
    owner, path = start_owner("undead")
    task = TaskId.parse("worker/1")
    log = LogTarget(storage_uri=str(tmp_path / "runs"), run="run", task=task, attempt=2)
    salvage(path, log, pid=owner.pid)

    assert owner.wait(timeout=5) == -signal.SIGKILL
    assert not path.exists()
    stored = read_log(open_run(str(tmp_path / "runs"), run="run"), task=task, attempt=2)
    assert stored == "printed before the end\n"
    salvage(path, log, pid=owner.pid)


def test_what_is_no_folder_is_left_alone() -> None:
    scratch_root().mkdir(mode=0o700, exist_ok=True)
    path = scratch_root() / "a file"
    path.write_text("")
    try:
        sweep(scratch_root(), stale_after_s=-1)
        assert path.exists()
    finally:
        path.unlink()
