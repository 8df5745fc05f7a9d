"""Asking tasks for their stacks: what is taken from a log, and who gets the signal."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import ClusterError
from raydist.runs.stacks import stacks_in
from raydist.runtime.cluster.signals import signal_task
from raydist.spec.tasks import TaskId
from tests.support.task_process import task_process
from tests.support.users import VICTIM, as_user, needs_users

MAILBOX = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/lib/python3.11/site-packages/raydist/runtime/task/actor.py", line 257 in _talk
"""
LOADER = """Thread 0x00007d (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "loader.py", line 4 in read
"""
MAIN = """Current thread 0x00007e (most recent call first):
  File "job.py", line 7 in train
  File "<string>", line 1 in <module>
"""
COPY = "/tmp/raydist-0/r-0-worker-0-56b0cf96-0/code"
DUMP = "\n".join([MAILBOX, LOADER, MAIN]).replace("job.py", f"{COPY}/job.py")


def test_first_whole_dump_is_taken_with_the_main_thread_first() -> None:
    found = stacks_in(f"Epoch 1/4\n{DUMP}Epoch 2/4\n{DUMP}")
    assert found == "\n".join([MAIN, LOADER, MAILBOX])


@pytest.mark.parametrize("log", ["", "Epoch 1/4\n", DUMP[:-40]], ids=["empty", "other", "cut"])
def test_dump_that_is_not_whole_yet_is_none(log: str) -> None:
    assert stacks_in(log) is None


def test_task_without_a_handler_is_not_killed(tmp_path: Path) -> None:
    place = {"run": "r", "task": TaskId.parse("worker/0"), "host": "127.0.0.1", "address_of": lambda: None}
    with task_process(tmp_path, run="r", task="worker/0") as process:
        with pytest.raises(ClusterError, match="no longer worker/0 of run r"):
            signal_task(process.pid, signal.SIGUSR1, **place)
        assert process.poll() is None
        signal_task(process.pid, signal.SIGTERM, **place)
        assert process.wait(timeout=10) == -signal.SIGTERM


@pytest.mark.parametrize("host", ["x" * 200, "null\0byte", "", "a..b", "example.invalid"])
def test_host_that_is_no_address_is_looked_for_in_ray_alone(host: str) -> None:
    def address_of() -> str:
        raise ClusterError("asked for Ray")

    with pytest.raises(ClusterError, match="asked for Ray"):
        signal_task(1, 0, run="r", task=TaskId.parse("worker/0"), host=host, address_of=address_of)


@needs_users
def test_task_of_another_user_is_no_task_of_ours(tmp_path: Path) -> None:
    def ask() -> None:
        place = {"task": TaskId.parse("worker/0"), "host": "127.0.0.1", "address_of": lambda: None}
        with pytest.raises(ClusterError, match="no longer worker/0 of run r"):
            signal_task(process.pid, signal.SIGTERM, run="r", **place)

    with task_process(tmp_path, run="r", task="worker/0") as process:
        as_user(VICTIM, ask)
        assert process.poll() is None


def test_no_ray_is_started_to_reach_a_task(monkeypatch: pytest.MonkeyPatch, shared_ray: Any) -> None:
    shared_ray.close()  # that of an earlier test, which this process would be connected to
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    place = {"run": "r", "task": TaskId.parse("worker/0"), "host": "198.51.100.7"}
    with pytest.raises(ClusterError, match=r"there is no Ray to reach it with; add --address HOST:PORT"):
        signal_task(1, 0, **place, address_of=lambda: "local")
