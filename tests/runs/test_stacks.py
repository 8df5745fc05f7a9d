"""Asking tasks for their stacks: what is taken from a log, and who gets the signal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from raydist.errors import ClusterError
from raydist.runs.stacks import stacks_in
from raydist.runtime.cluster.signals import signal_task
from raydist.spec.tasks import TaskId
from tests.support.task_process import task_process

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
