"""`raydist stacks` on a live run, and after its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, status_of
from tests.support.slow_job import write_slow_job


@pytest.mark.slow
def test_stacks_of_a_live_run_show_where_each_task_is(
    raydist: Callable[..., Ended], tmp_path: Path, wait_until: WaitUntil
) -> None:
    detached = raydist("submit", write_slow_job(tmp_path), "--name", "slow-1", "--detach", "-p", "pause_s=2")
    assert detached.code == 0, detached.err
    wait_until(lambda: status_of(tmp_path, "slow-1")["steps"] >= 2, timeout_s=120)
    try:
        both = raydist("stacks", "slow-1", "--json")
        assert both.code == 0, both.err
        stacks = both.json["stacks"]
        assert sorted(stacks) == ["worker/0", "worker/1"]
        assert all("slow.py" in text and "in train" in text for text in stacks.values())
        one = raydist("stacks", "@latest", "--task", "worker/1")
        assert one.out.startswith("== worker/1\n")
        assert "worker/0" not in one.out
        unknown = raydist("stacks", "slow-1", "--task", "worker/7")
        assert (unknown.code, "has no task worker/7; it has worker/0, worker/1" in unknown.err) == (2, True)
        steps = status_of(tmp_path, "slow-1")["steps"]
        wait_until(lambda: status_of(tmp_path, "slow-1")["steps"] > steps, timeout_s=30)
        assert status_of(tmp_path, "slow-1")["attempts"] == 1
    finally:
        assert raydist("stop", "slow-1").code == 0
    ended = raydist("stacks", "slow-1")
    assert (ended.code, "has ended: CANCELLED" in ended.err) == (2, True)
