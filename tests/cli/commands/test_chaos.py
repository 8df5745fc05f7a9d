from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.task_process import task_process


@pytest.fixture
def task_of_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with task_process(tmp_path, run="digits-1", task="worker/1") as process:
        yield process


def store(pid: int | None, *, state: str = "RUNNING", host: str = "127.0.0.1", steps: int = 7) -> None:
    from raydist.storage.run_record import RunRecordStore
    from raydist.storage.run_storage import open_run
    from tests.support.records import make_record

    task: dict[str, Any] = {"task": "worker/1", "host": host, "pid": pid, "state": "RUNNING", "steps": steps}
    record = {"state": state, "steps": steps, "tasks": [task]}
    storage = open_run("raydist_runs", run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, **record))


@pytest.mark.parametrize(
    ("option", "number", "words"),
    [("--kill", signal.SIGKILL, "killed worker/1"), ("--term", signal.SIGTERM, "sent SIGTERM to worker/1")],
)
def test_task_gets_the_signal(
    raydist: Run, task_of_run: subprocess.Popen[str], option: str, number: int, words: str
) -> None:
    store(task_of_run.pid)
    code, out, _ = raydist("chaos", "digits-1", option, "worker/1", "--at-step", "7")
    assert (code, out.startswith(words), out.endswith("at step 7\n")) == (0, True, True)
    assert task_of_run.wait(timeout=10) == -number


def test_stopped_task_goes_on(raydist: Run, task_of_run: subprocess.Popen[str], wait_until: Any) -> None:
    store(task_of_run.pid)
    assert raydist("chaos", "digits-1", "--stop", "worker/1")[0] == 0
    wait_until(lambda: state_of(task_of_run.pid) == "T")
    code, out, _ = raydist("chaos", "digits-1", "--stop", "worker/1", "--for", "0.1s", "--json")
    assert (code, '"fault": "stop"' in out) == (0, True)
    wait_until(lambda: state_of(task_of_run.pid) == "S")


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give one of --kill TASK, --term TASK and --stop TASK"),
        (("--kill", "worker/1", "--stop", "worker/1"), "give one of --kill TASK"),
        (("--kill", "worker/1", "--for", "3"), "give it with --stop"),
        (("--kill", "worker/9"), "run digits-1 has no task worker/9; it has worker/1"),
        (("--kill", "w1"), "w1"),
    ],
)
def test_mistakes_are_told(raydist: Run, arguments: tuple[str, ...], sentence: str) -> None:
    store(1)
    code, _, err = raydist("chaos", "digits-1", *arguments)
    assert (code, sentence in err) == (2, True), err


def test_run_that_has_ended_is_left_alone(raydist: Run) -> None:
    store(1, state="SUCCEEDED")
    code, _, err = raydist("chaos", "digits-1", "--kill", "worker/1")
    assert (code, "has ended: SUCCEEDED after 7 steps" in err) == (2, True)


def test_process_that_is_no_task_is_spared(raydist: Run) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        store(other.pid)
        code, _, err = raydist("chaos", "digits-1", "--kill", "worker/1")
        assert (code, "is no longer worker/1 of run digits-1" in err, other.poll()) == (3, True, None)
        other.kill()


@pytest.mark.parametrize(("run", "task"), [("digits-2", "worker/1"), ("digits-1", "worker/2")])
def test_another_task_that_the_record_names_is_spared(
    raydist: Run, tmp_path: Path, run: str, task: str
) -> None:
    with task_process(tmp_path, run=run, task=task) as other:
        store(other.pid)
        code, _, err = raydist("chaos", "digits-1", "--kill", "worker/1")
        assert (code, "is no longer worker/1 of run digits-1" in err, other.poll()) == (3, True, None)
