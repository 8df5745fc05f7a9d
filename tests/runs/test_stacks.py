"""Asking tasks for their stacks: what is taken from a log, and who gets the signal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from raydist.errors import ClusterError
from raydist.runs.stacks import stacks_in
from raydist.runtime.cluster.signals import signal_task
from tests.conftest import WaitUntil

DUMP = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007e (most recent call first):
  File "/code/job.py", line 7 in train
  File "/site-packages/ray/_private/workers/default_worker.py", line 320 in <module>
"""


def test_first_whole_dump_is_taken() -> None:
    assert stacks_in(f"Epoch 1/4\n{DUMP}Epoch 2/4\n{DUMP}") == DUMP


@pytest.mark.parametrize("log", ["", "Epoch 1/4\n", DUMP[:-40]], ids=["empty", "other", "cut"])
def test_dump_that_is_not_whole_yet_is_none(log: str) -> None:
    assert stacks_in(log) is None


def test_task_without_a_handler_is_not_killed(wait_until: WaitUntil) -> None:
    with subprocess.Popen(["bash", "-c", "exec -a ray::TaskActor sleep 60"]) as process:
        try:
            cmdline = Path(f"/proc/{process.pid}/cmdline")
            wait_until(lambda: cmdline.read_bytes().startswith(b"ray::TaskActor"), timeout_s=10)
            with pytest.raises(ClusterError, match="no task of raydist"):
                signal_task(process.pid, signal.SIGUSR1, host="127.0.0.1", address=None)
            assert process.poll() is None
            signal_task(process.pid, signal.SIGTERM, host="127.0.0.1", address=None)
            assert process.wait(timeout=10) == -signal.SIGTERM
        finally:
            process.kill()
