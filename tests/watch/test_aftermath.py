"""What is done for a run whose driver died, on records and folders made by hand."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydist.outcome.codec import as_plain
from raydist.runtime.host.scratch import scratch_root
from raydist.storage.claims import this_process
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore, read_record
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import read_events
from raydist.watch.aftermath import describe_death, settle
from raydist.watch.watcher import DrivenRun, DriverFacts, Watcher
from tests.conftest import WaitUntil
from tests.support.records import make_record

Write = Callable[..., DrivenRun]
_TASK = {"host": "here", "pid": 7, "address": "here:1", "steps": 20}


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "runs"))


@pytest.fixture
def driven(storage: Storage) -> Write:
    """Writes the record of a run that this process drives."""

    def write(**facts: Any) -> DrivenRun:
        tasks = [{"task": "worker/0", "state": "RUNNING", **_TASK}]
        tasks += [{"task": "worker/1", "state": "FINISHED", **_TASK}]
        record = {"state": "RUNNING", "strategy": "mirrored", "keras": "3", "attempts": 2, "tasks": tasks}
        driver = this_process()
        folder = RunStorage(storage, run="r")
        made = make_record(folder, **{**record, "driver": driver, **facts})
        RunRecordStore(folder).replace(made)
        return DrivenRun(name="r", storage=storage.uri(), owner="0a1b2c3d", driver=driver)

    return write


@pytest.mark.parametrize("state", ["STARTING", "RUNNING", "STOPPING"])
def test_record_of_a_run_that_went_on_ends_with_what_to_do(
    driven: Write, storage: Storage, state: str
) -> None:
    run = driven(state=state, checkpoint="/runs/r/checkpoints/step-20-a1", spec={"name": "r"})
    result = settle(run, how=describe_death(1))
    assert result is not None
    record = as_plain(read_record(RunStorage(storage, run="r")))
    assert (record["state"], record["error"]["type"], record["error"]["attempt"]) == (
        "FAILED",
        "ClusterError",
        1,
    )
    assert record["error"]["message"].startswith("Ray died under the run")
    remedy = f"; `raydist resume r --storage {storage.uri()}` continues from its last checkpoint"
    assert record["error"]["message"].endswith(remedy)
    assert [task["state"] for task in record["tasks"]] == ["STOPPED", "FINISHED"]
    assert record["spec"] == {"name": "r"}  # which `resume` reads
    assert (result.exit_code, result.as_dict()["error"]) == (3, record["error"])
    [event] = read_events(RunStorage(storage, run="r"))
    assert (event["event"], event["state"], event["error"]) == ("state", "FAILED", record["error"])


def test_run_without_a_checkpoint_begins_anew(
    driven: Write, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the working folder is gone, as that of a process of a Ray that was killed is."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    result = settle(driven(), how=describe_death(-signal.SIGKILL))
    assert result.error.message == (
        f"the process that drove the run was killed by SIGKILL; `raydist resume r --storage {storage.uri()}` "
        "trains it from the beginning"
    )


def test_run_that_has_ended_keeps_its_end(driven: Write, storage: Storage) -> None:
    result = settle(driven(state="SUCCEEDED"), how=describe_death(1))
    assert (result.exit_code, read_record(RunStorage(storage, run="r")).state.value) == (0, "SUCCEEDED")
    assert read_events(RunStorage(storage, run="r")) == []


def test_record_of_another_driver_is_left_alone(driven: Write, storage: Storage) -> None:
    run = driven(driver={"host": "there", "pid": 1, "start": 2})
    assert settle(run, how=describe_death(1)) is None
    assert read_record(RunStorage(storage, run="r")).state.value == "RUNNING"


def test_run_that_has_no_record_yet_gets_none(storage: Storage) -> None:
    run = DrivenRun(name="r", storage=storage.uri(), owner="0a1b2c3d", driver=this_process())
    assert settle(run, how=describe_death(1)) is None
    assert not storage.exists("r/run.json")


def test_scratch_folder_of_the_run_is_cleared_and_its_log_stored(driven: Write, storage: Storage) -> None:
    run = driven()
    ours, theirs = (scratch_root() / f"r-1-worker-0-{owner}-0" for owner in (run.owner, "ffffffff"))
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
        (folder / "log").write_text("the last words\n")
    with (theirs / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        settle(run, how=describe_death(1))
    assert [path.name for path in scratch_root().iterdir()] == [theirs.name]
    assert storage.read_text("r/logs/1/worker-0/000000.log") == "the last words\n"


_SLEEP = "import time; time.sleep(60)"
# As Ray 2.60 starts and renames its processes.
_RAYS = {
    "raylet": ["/site-packages/ray/core/src/ray/raylet/raylet", "-c", _SLEEP],
    "renamed": ["ray::DashboardAgent", "-c", _SLEEP],
    "not_renamed_yet": [sys.executable, "-u", "SITE/ray/_private/workers/default_worker.py", "--port=1"],
}


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "ray" / "session_1"
    path.mkdir(parents=True)
    (path / "agent.log").write_text("a line\n")
    (path.parent / "session_latest").symlink_to(path)
    return path


@pytest.mark.parametrize("command", _RAYS.values(), ids=_RAYS)
def test_embedded_ray_leaves_neither_process_nor_folder(
    driven: Write, session: Path, tmp_path: Path, command: list[str]
) -> None:
    worker = tmp_path / "ray" / "_private" / "workers" / "default_worker.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(_SLEEP)
    command = [part.replace("SITE", str(tmp_path)) for part in command]
    with (session / "agent.log").open("a") as log:
        agent = subprocess.Popen(command, executable=sys.executable, stdout=log)
    with subprocess.Popen(command, executable=sys.executable) as other:  # another session's
        settle(DrivenRun(**{**driven().__dict__, "session": str(session)}), how=describe_death(1))
        assert agent.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    assert not session.exists()
    assert not (session.parent / "session_latest").is_symlink()


def test_whoever_looks_into_a_session_outlives_it(
    driven: Write, session: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    log = session.parent / "session_latest" / "agent.log"
    driver = tmp_path / "job.py"
    driver.write_text(f"import sys, time; log = open(sys.argv[1], 'a'); {_SLEEP}")
    commands = [
        ["tail", "-f", str(log)],
        ["sh", "-c", 'exec 3>>"$0"; sleep 60 3>&- & wait', str(log)],
        [sys.executable, str(driver), str(log)],
    ]
    with contextlib.ExitStack() as stack:
        lookers = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True))
            for command in commands
        ]
        for looker in lookers:
            stack.callback(os.killpg, looker.pid, signal.SIGKILL)
            wait_until(lambda pid=looker.pid: has_open(pid, session / "agent.log"))
        settle(DrivenRun(**{**driven().__dict__, "session": str(session)}), how=describe_death(1))
        assert not session.exists()
        for looker in lookers:
            with pytest.raises(subprocess.TimeoutExpired):
                looker.wait(0.2)


def has_open(pid: int, path: Path) -> bool:
    return any(fd.exists() and fd.samefile(path) for fd in Path(f"/proc/{pid}/fd").iterdir())


def test_what_is_told_survives_the_pipe_and_a_line_that_was_cut_off(driven: Write) -> None:
    run = driven()
    reading, writing = os.pipe()
    watcher = Watcher(writing)

    def told(tell: Callable[[], None]) -> bytes:
        tell()
        return os.read(reading, 1 << 16)

    begun, over = told(lambda: watcher.begin(run)), told(watcher.end)
    exiting = told(lambda: watcher.exit(2))
    os.close(reading)
    os.close(writing)
    assert DriverFacts.of(b"") == DriverFacts()
    assert DriverFacts.of(begun) == DriverFacts(run=run, has_begun=True)
    assert DriverFacts.of(begun + over[:-3]).run == run
    assert DriverFacts.of(begun + over).is_over
    assert DriverFacts.of(begun + over + exiting).exit_code == 2


_SCRIPT = """
import os, sys
from pathlib import Path
from raydist.storage.claims import this_process
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage
from raydist.storage.run_record import RunRecordStore
from raydist.watch.watcher import DrivenRun
from raydist.watch.watcher import watched
from tests.support.records import make_record

def watchers():
    found = []
    while not found:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_text().split("\\0")
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            is_mine = line[3:4] == [str(os.getpid())] and "raydist.watch.process" in line[2]
            if is_mine and parent != str(os.getpid()):
                found.append(path.name)
    return " ".join(found)

with watched() as watcher:
    driver, storage = this_process(), Storage.open(sys.argv[1])
    children = watchers()
    if sys.argv[2] != "before":
        folder = RunStorage(storage, run="r")
        RunRecordStore(folder).replace(make_record(folder, state="RUNNING", driver=driver))
        watcher.begin(DrivenRun(name="r", storage=storage.uri(), owner="0a1b2c3d", driver=driver))
    if sys.argv[2] == "forked" and os.fork() == 0:  # holds the pipe, as a data loader's process does
        os.close(1); os.close(2)
        import time; time.sleep(5); os._exit(0)
    print(children, flush=True)
    if sys.argv[2] != "orderly":
        os._exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", "forked", "orderly", "before"])
def test_watcher_process_outlives_the_driver_only_to_clear_up(
    tmp_path: Path, storage: Storage, wait_until: WaitUntil, how: str
) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(  # waits for the watcher too, which has the same stderr
        # Python 3.12 warns of a fork beside threads, which is what `forked` is about.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _SCRIPT, str(tmp_path / "runs"), how],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    watcher = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{watcher}").exists())
    if how in ("orderly", "before"):
        assert (done.returncode, done.stderr) == (how == "before", "")
        return
    assert done.returncode == 1
    assert done.stderr.startswith(f"raydist: run r ({tmp_path}/runs/r): the process that drove the run died")
    assert f"`raydist resume r --storage {tmp_path}/runs`" in done.stderr
    assert read_record(RunStorage(storage, run="r")).state.value == "FAILED"
