"""Starting a cluster of TensorFlow tasks: who is missing, who failed, and what SIGTERM does afterwards."""

from __future__ import annotations

import functools
import signal

import pytest

from tests.conftest import WaitUntil
from tests.support.processes import Cluster, TaskProcess, run_in_turn, started

FUNCTIONS = "tests.support.train_functions"
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)


@pytest.mark.slow
def test_missing_peer_is_named_at_the_start_deadline() -> None:
    with started(f"{FUNCTIONS}:wait", TWO_WORKERS, job_options={"start_timeout": 12}) as [first, second]:
        second.process.kill()
        assert first.process.wait(timeout=90) == 1
        text = first.text()
    assert "ClusterError: not all tasks joined the TensorFlow cluster within 12 s" in text
    assert "/job:worker/replica:0/task:1" in text


@pytest.mark.slow
def test_sigterm_ends_a_task_that_trains(wait_until: WaitUntil) -> None:
    with started(f"{FUNCTIONS}:wait", TWO_WORKERS) as tasks:
        wait_until(lambda: all("training" in task.text() for task in tasks), timeout_s=90)
        for task in tasks:
            task.process.send_signal(signal.SIGTERM)
        assert [task.process.wait(timeout=20) for task in tasks] == [-signal.SIGTERM] * 2


def test_exception_in_one_worker_ends_its_peer_at_once() -> None:
    with started(f"{FUNCTIONS}:raise_in_worker_1", TWO_WORKERS) as [first, second]:
        assert [task.process.wait(timeout=90) for task in (first, second)] == [1, 1]
        text = first.text()
    # The report of worker/1 itself, not what TensorFlow finds once heartbeats are missing.
    assert "worker/1: ValueError: only here" in text
    assert "stopped sending heartbeats" not in text


@functools.cache
def one_process() -> dict[str, list[TaskProcess]]:
    names = ("session_with_other_keras", "second_session")
    return run_in_turn({name: (f"{FUNCTIONS}:{name}", {}) for name in names}, Cluster())


def test_strategy_built_after_tensorflow_was_used_is_refused() -> None:
    [task] = one_process()["second_session"]
    assert task.values["error"].startswith("UnsupportedError: TensorFlow was used before")


def test_wrong_keras_is_refused() -> None:
    [task] = one_process()["session_with_other_keras"]
    assert "asked for was --keras legacy" in task.values["error"]
