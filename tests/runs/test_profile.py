"""Asking a task for a profile: who is asked, what comes back, and that no request is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydist.errors import ClusterError, MistakeError, RaydistError
from raydist.runs.profile import profile_task
from raydist.spec.tasks import TaskId
from raydist.storage import profile_mail
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.conftest import WaitUntil
from tests.support.records import make_record
from tests.support.task_process import task_process

# What a task does with the signal: it answers each request with the steps that were asked for.
TASK = """
import signal, sys, threading
from raydist.spec.tasks import TaskId
from raydist.storage import profile_mail
from raydist.storage.run_storage import open_run
storage, task, asked = open_run(sys.argv[1], run="r"), TaskId.parse("worker/0"), threading.Event()
signal.signal(signal.SIGUSR2, lambda *_: asked.set())
print("ready", flush=True)
while asked.wait():
    asked.clear()
    for name, request in profile_mail.read_requests(storage, task).items():
        if request.steps < 100:
            answer = profile_mail.ProfileAnswer(first_step=1, last_step=request.steps)
            profile_mail.write_answer(storage, task, name, answer)
"""


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path), run="r")


def write(storage: RunStorage, *tasks: str, pid: int | None = None, **facts: object) -> None:
    entries = [{"task": task, "state": "RUNNING", "host": "127.0.0.1", "pid": pid} for task in tasks]
    record = make_record(storage, **{"state": "RUNNING", "tasks": entries, "steps": 7, **facts})
    RunRecordStore(storage).replace(record)


@contextmanager
def running_task(storage: RunStorage) -> Iterator[subprocess.Popen[str]]:
    folder = storage.local_path()
    command = [sys.executable, "-c", TASK, str(folder)]
    with task_process(folder.with_name("scratch"), run="r", task="worker/0", command=command) as process:
        assert process.stdout.readline() == "ready\n"
        yield process


def profile(storage: RunStorage, task: str | None = None, *, steps: int = 5, timeout_s: float = 60.0) -> int:
    _, answer = profile_task(
        storage, None if task is None else TaskId.parse(task), steps=steps, timeout_s=timeout_s
    )
    return answer.last_step


def test_task_is_asked_and_nothing_is_left(storage: RunStorage) -> None:
    with running_task(storage) as task:
        write(storage, "worker/0", "worker/1", pid=task.pid)
        assert profile(storage, steps=5) == 5
        with pytest.raises(ClusterError, match="worker/0 of run r did not complete 200 steps within"):
            profile(storage, steps=200, timeout_s=0.2)
    assert not storage.exists(storage.profile_mail)


@pytest.mark.slow  # the run is looked at every 5 s
def test_task_that_dies_meanwhile_is_told(storage: RunStorage, wait_until: WaitUntil) -> None:
    errors: list[RaydistError] = []

    def ask() -> None:
        try:
            profile(storage, steps=200)
        except RaydistError as error:
            errors.append(error)

    with running_task(storage) as task:
        write(storage, "worker/0", pid=task.pid)
        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: bool(profile_mail.read_requests(storage, TaskId.parse("worker/0"))), timeout_s=30)
        write(storage, "worker/0", pid=task.pid, state="FAILED")
        thread.join(timeout=60)
    assert [type(error) for error in errors] == [MistakeError]
    assert "ended before worker/0 was profiled: FAILED after 7 steps" in str(errors[0])
    assert not storage.exists(storage.profile_mail)


def test_process_that_is_no_task_any_more_is_told(storage: RunStorage) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            write(storage, "worker/0", pid=process.pid)
            with pytest.raises(ClusterError, match="no longer worker/0 of run r"):
                profile(storage)
        finally:
            process.kill()
    assert not storage.exists(storage.profile_mail)


@pytest.mark.parametrize(
    ("task", "facts", "error"),
    [
        (None, {"state": "SUCCEEDED"}, "run r has ended: SUCCEEDED after 7 steps"),
        ("worker/7", {}, "has no task worker/7; it has chief/0, worker/0, ps/0, evaluator/0"),
        ("evaluator/0", {}, "evaluator/0 cannot be profiled: it takes no training steps"),
        ("worker/0", {"strategy": "parameter_server"}, "worker/0 cannot be profiled: under parameter_server"),
        ("ps/0", {"strategy": "parameter_server"}, "profile chief/0"),
    ],
)
def test_mistake_is_told(storage: RunStorage, task: str | None, facts: dict[str, str], error: str) -> None:
    write(storage, "chief/0", "worker/0", "ps/0", "evaluator/0", pid=1, **facts)
    with pytest.raises(MistakeError, match=error):
        profile(storage, task)


def test_chief_is_asked_unless_told_otherwise(storage: RunStorage) -> None:
    write(storage, "worker/0", "chief/0", strategy="parameter_server")
    with pytest.raises(ClusterError, match="chief/0 of run r has no process now"):
        profile(storage)
    write(storage, "worker/0", "worker/1")
    with pytest.raises(ClusterError, match="worker/0 of run r has no process now"):
        profile(storage)
