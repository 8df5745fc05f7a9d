"""A run whose tasks Ray's memory monitor kills, and which asks for more memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.e2e.conftest import RunningRay, start_raydist, status_of
from tests.support.processes import PATIENCE


@pytest.mark.slow
def test_task_killed_for_memory_is_named_so_and_the_next_attempt_asks_for_more(
    running_ray: RunningRay, tmp_path: Path
) -> None:
    """An embedded Ray takes any host for one whose memory has run out."""
    # The least that Ray takes: its own processes use more. It looks often, and kills what runs.
    monitor = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    shell = dataclasses.replace(running_ray, environ={**running_ray.environ, **monitor})
    (tmp_path / "main.py").write_text("import time\ntime.sleep(600)\n")
    asked = ("--memory", "worker=100MiB", "--memory-retry", "2x", "--max-failures", "1")
    process = start_raydist(
        shell, tmp_path, *("submit", "main.py", "--address", "local", "--name", "r", "--json", *asked)
    )
    try:
        out, err = process.communicate(timeout=120 * PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    record = status_of(tmp_path, "r")
    assert record["error"]["type"] == "OutOfMemoryError"
    assert "was killed by Ray's memory monitor: " in record["error"]["message"]
    assert "on its host were used" in record["error"]["message"]
    assert len(record["error"]["message"]) < 600
    assert "attempt 1 asks for 200 MiB of memory for each worker instead of 100 MiB" in record["notes"], (
        record["notes"]
    )
    assert [failure["is_out_of_memory"] for failure in record["failures"]] == [True, True]
