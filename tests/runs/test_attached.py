"""raydist.attach from storage alone: runs that have ended, and runs that nobody drives any more."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raydist
from raydist.runtime.cluster.connection import Connection
from raydist.storage import claims, own_runs
from raydist.storage.claims import this_process
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.storage.test_claims import dead_process
from tests.support.records import make_record
from tests.test_api import train as train

NOBODY = "127.0.0.1:1"  # a port that no Ray listens on


def store(folder: Path, *, written_at_s: float | None = None, **facts: Any) -> raydist.RunHandle:
    clock = {} if written_at_s is None else {"clock": lambda: written_at_s}
    storage = open_run(str(folder), run="r")
    RunRecordStore(storage, **clock).replace(make_record(storage, **facts))
    return raydist.attach("r", storage=str(folder))


def test_ended_run_is_told_from_storage(tmp_path: Path) -> None:
    handle = store(tmp_path, state="SUCCEEDED", steps=7, attempts=1, metrics={"loss": 0.5})
    result = handle.result(timeout=0)
    assert (handle.name, result.steps, dict(result.metrics)) == ("r", 7, {"loss": 0.5})
    handle.stop()  # harmless


def test_failed_run_raises_its_error(tmp_path: Path) -> None:
    error = {"type": "KeyError", "message": "worker/1 failed", "task": "worker/1", "attempt": 2, "log": "l"}
    handle = store(tmp_path, state="FAILED", error=error)
    with pytest.raises(raydist.TaskFailedError, match="worker/1 failed") as caught:
        handle.result()
    assert (caught.value.task, caught.value.attempt, caught.value.log) == ("worker/1", 2, "l")
    assert isinstance(caught.value.result, raydist.RunResult)


def test_run_that_goes_on_is_a_timeout(tmp_path: Path) -> None:
    handle = store(tmp_path, state="RUNNING", driver=this_process())
    with pytest.raises(TimeoutError, match=r"run r did not end within 0\.5 s; it is still running"):
        handle.result(timeout=0.5)


def test_run_whose_process_died_is_told_and_not_waited_for(tmp_path: Path) -> None:
    handle = store(tmp_path, written_at_s=5.0, state="RUNNING", driver=dead_process())
    with pytest.raises(raydist.ClusterError, match=r"which drove it, has died.*raydist resume r"):
        handle.result()


def test_detached_run_whose_ray_is_gone_is_told_and_not_waited_for(tmp_path: Path) -> None:
    driver = {**this_process(), "actor": "r", "address": NOBODY}
    handle = store(tmp_path, written_at_s=5.0, state="RUNNING", driver=driver)
    own_runs.remember(open_run(str(tmp_path), run="r"), addresses=[NOBODY])
    for call in (handle.result, handle.stop):
        with pytest.raises(raydist.ClusterError, match=r"run r cannot be asked for.*raydist resume r"):
            call()


@pytest.mark.slow
def test_ray_that_the_storage_alone_names_is_not_joined(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        handle = store(
            tmp_path,
            written_at_s=5.0,
            state="RUNNING",
            driver={**this_process(), "actor": "r", "address": address},
        )
        with pytest.raises(TimeoutError):  # waiting needs the storage alone
            handle.result(timeout=0.5)
        for call in (handle.stop,):
            with pytest.raises(
                raydist.MistakeError, match=f"so that Ray is not joined; add --address {address}"
            ):
                call()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_ray_is_started_for_a_run_in_one_that_its_driver_started(tmp_path: Path) -> None:
    driver = {**this_process(), "actor": "r", "address": "local"}
    handle = store(tmp_path, written_at_s=5.0, state="RUNNING", driver=driver)
    with pytest.raises(raydist.MistakeError, match="its driver has started, and other processes cannot join"):
        handle.stop()


def test_process_that_the_storage_alone_names_gets_no_signal(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        driver = {**this_process(), "pid": process.pid, "start": claims._start_of(process.pid)}
        handle = store(tmp_path, state="RUNNING", driver=driver)
        with pytest.raises(raydist.MistakeError, match="has not submitted it there, so it gets no signal"):
            handle.stop()
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("spoiled", ["mode", "owner", "link"])
def test_folder_that_others_can_write_to_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    storage = open_run(str(tmp_path), run="r")
    own_runs.remember(storage, addresses=[NOBODY])
    assert own_runs.recall(storage)["addresses"] == [NOBODY]
    folder = tmp_path / "state" / "raydist" / "runs"
    if spoiled == "mode":
        folder.chmod(0o777)
    elif spoiled == "link":
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
    elif os.getuid():
        pytest.skip("only root can give a folder to somebody else")
    else:
        os.chown(folder, 12345, 12345)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert own_runs.recall(storage) == {}
    own_runs.remember(storage, addresses=[NOBODY])
    own_runs.remember(open_run(str(tmp_path), run="other"), addresses=["10.0.0.1:1"])
    assert own_runs.recall(storage)["addresses"] == [NOBODY]  # noted elsewhere


def test_unknown_run_is_told_at_once(tmp_path: Path) -> None:
    store(tmp_path, state="RUNNING")
    with pytest.raises(raydist.MistakeError, match="did you mean r"):
        raydist.attach("rr", storage=str(tmp_path))
    with pytest.raises(raydist.SpecError, match=r"name is '\.\.'"):
        raydist.attach("..", storage=str(tmp_path))


def test_other_ray_than_this_process_is_connected_to_is_told(ray_cluster: Connection, tmp_path: Path) -> None:
    handle = store(tmp_path, state="RUNNING", driver={**this_process(), "actor": "r", "address": NOBODY})
    own_runs.remember(open_run(str(tmp_path), run="r"), addresses=[NOBODY, ray_cluster.address])
    with pytest.raises(raydist.ClusterError, match=f"connected to the Ray at {ray_cluster.address}"):
        handle.stop()
    nobody = store(
        tmp_path, state="RUNNING", driver={**this_process(), "actor": "r", "address": ray_cluster.address}
    )
    with pytest.raises(raydist.MistakeError, match="its controller is no longer in the Ray"):
        nobody.stop()


@pytest.mark.slow
def test_ray_that_this_process_started_cannot_keep_a_run(ray_cluster: object, tmp_path: Path) -> None:
    with pytest.raises(raydist.SpecError, match="ends with this process"):
        raydist.submit(train, detach=True, storage=str(tmp_path / "runs"))
    assert not (tmp_path / "runs" / "run.json").exists()
