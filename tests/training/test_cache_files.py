"""`Dataset.cache(path)`: no process is in the way of another one, and none leaves files behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function, started

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.cache_functions"
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
# As a program before, without raydist, has written it.
WHOLE = "import sys, tensorflow as tf; [*tf.data.Dataset.range(4).cache(sys.argv[1])]"


def test_two_workers_of_one_host_cache_the_same_path(tmp_path: Path) -> None:
    (tmp_path / "a [b]").mkdir()
    [plain] = run_function(f"{FUNCTIONS}:cached", Cluster(), folder=None)
    for task in run_function(f"{FUNCTIONS}:cached", TWO_WORKERS, folder=str(tmp_path)):
        np.testing.assert_allclose(task.arrays["weights"], plain.arrays["weights"], atol=1e-6)
        assert task.values["calls"] < 2 * 40  # the first two batches may be read before
        assert all(name.startswith("cache.raydist-") for name in task.values["files"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []  # both have deleted their own


def test_files_of_a_killed_process_are_not_in_the_way_and_deleted(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    subprocess.run([sys.executable, "-c", WHOLE, str(tmp_path / "whole")], check=True)
    whole = {path.name for path in tmp_path.iterdir()}
    elsewhere = tmp_path / "cache.raydist-00000000-1-1_0.lockfile"  # of another host, which may live
    elsewhere.touch()
    with started(f"{FUNCTIONS}:killed_while_it_writes", Cluster(), folder=str(tmp_path)) as [task]:
        wait_until((tmp_path / "begun").exists, timeout_s=120)
        task.kill()
    [again] = run_function(f"{FUNCTIONS}:cached_again", Cluster(), attempt=1, folder=str(tmp_path))
    assert again.values["again"] == [0, 1, 2, 3, 4]
    assert again.values["whole"] == [0, 1, 2, 3]  # a complete cache is read, as without raydist
    left = {name for name in again.values["before"] if name.startswith("cache.")} - {elsewhere.name}
    assert left  # by the killed one
    assert left.isdisjoint(again.values["after"])
    assert {path.name for path in tmp_path.iterdir()} == whole | {"begun", elsewhere.name}
