"""`batches(…).cached()`: trainings have the same bits, and what a host has decoded is not decoded again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.cached_functions import COUNT, write
from tests.support.processes import Cluster, TaskProcess, run_function, started

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.cached_functions"
TARGET = f"{FUNCTIONS}:trained"
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data")
    return tmp_path / "data"


def total(tasks: list[TaskProcess], name: str) -> int:
    return sum(task.values[name] for task in tasks)


def test_batches_have_the_same_bits(folder: Path) -> None:
    [first] = run_function(f"{FUNCTIONS}:compared", Cluster(), folder=str(folder))
    [second] = run_function(f"{FUNCTIONS}:compared", Cluster(), folder=str(folder))
    for kind in ("records", "images", "lists", "mixed"):
        for where in ("disk", "memory"):
            assert first.values[f"{kind} {where}"]["is_equal"]
            found = second.values[f"{kind} {where}"]
            assert found["is_equal"]
            assert (found["read"] == 0) == (where == "disk")
    for case in ("images damaged", "records damaged", "nowhere"):
        assert second.values[case]["is_equal"]
    assert "examples are not cached: " in second.printed
    assert first.values["refused"] == second.values["refused"]
    for message, told in first.values["refused"].items():
        assert message in told
    assert {path.stat().st_mode & 0o77 for path in (folder.parent / "cache" / "examples").rglob("*")} == {0}


def test_killed_run_and_a_second_one_decode_the_rest_and_have_the_same_bits(
    folder: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    given = {"kind": "mixed", "folder": str(folder), "job_options": {"checkpoint_every": "3"}}
    plain = run_function(TARGET, TWO_WORKERS, where=None, storage=tmp_path / "a", **given)
    assert total(plain, "decoded") >= 3 * COUNT
    cached = {"where": "disk", **given}
    with started(TARGET, TWO_WORKERS, kill_at=11, storage=tmp_path / "b", **cached) as [_, killed]:
        wait_until(lambda: killed.process.poll() is not None, timeout_s=200)
        assert killed.process.poll() == -signal.SIGKILL, killed.text()
    resumed = run_function(TARGET, TWO_WORKERS, attempt=1, storage=tmp_path / "b", **cached)
    assert all(0 < task.values["restored_step"] <= 11 for task in resumed)
    # Others were decoded before the kill, batches ahead of the training.
    assert total(resumed, "decoded") < COUNT / 2
    again = run_function(TARGET, TWO_WORKERS, storage=tmp_path / "c", **cached)
    assert total(again, "read") == total(again, "decoded") == 0
    for task in (*resumed, *again):
        np.testing.assert_array_equal(task.arrays["weights"], plain[0].arrays["weights"])


def test_workers_of_parameter_servers_keep_what_they_decode(folder: Path) -> None:
    cluster = Cluster(strategy="parameter_server", workers=1, ps=1)
    [chief] = run_function(TARGET, cluster, kind="images", folder=str(folder), where="disk")
    assert np.isfinite(chief.arrays["weights"]).all()
    [records] = (folder.parent / "cache").rglob("records")
    assert records.stat().st_size == COUNT * (1 * 2 * 3 + 8)
