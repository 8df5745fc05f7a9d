"""--keep-runs: which runs of a storage a run deletes at its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import raydist
from raydist.storage.claims import Claim, ClaimStore, hold, let_go, this_process
from raydist.storage.filesystem import Storage
from raydist.storage.run_names import run_names
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_removal import delete_expired
from raydist.storage.run_storage import RunStorage
from tests.support.records import make_record

NOW_S = 1_800_000_000.0
DAY_S = 86400.0


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "runs"))


def add(storage: Storage, run: str, *, age_s: float, now_s: float = NOW_S, **facts: Any) -> RunStorage:
    opened = RunStorage(storage, run=run)
    record = make_record(opened, **{"state": "SUCCEEDED", **facts})
    RunRecordStore(opened, clock=lambda: now_s - age_s).replace(record)
    return opened


def expire(storage: Storage, **options: Any) -> str | None:
    return delete_expired(storage, **{"age_s": 30 * DAY_S, "but": "own", "now": lambda: NOW_S, **options})


def test_runs_that_ended_before_that_time_are_deleted_and_no_others(storage: Storage) -> None:
    add(storage, "own", age_s=40 * DAY_S)
    add(storage, "old", age_s=31 * DAY_S)
    add(storage, "older", age_s=300 * DAY_S, state="FAILED")
    add(storage, "young", age_s=29 * DAY_S)
    damaged = add(storage, "damaged", age_s=40 * DAY_S)
    damaged.write_bytes(damaged.record, b"{")
    live = add(storage, "live", age_s=40 * DAY_S, state="RUNNING", claim=0)
    claim = Claim(number=0, id="held-here", holder=this_process(), at_s=NOW_S)
    assert ClaimStore(live).add(claim)
    hold(claim.id)
    try:
        said = expire(storage)
        assert expire(storage) is None
    finally:
        let_go(claim.id)
    assert run_names(storage) == ["damaged", "live", "own", "young"]
    assert said == "keep_runs is 30d: 2 runs deleted that had ended (old, older)"


def test_what_takes_too_long_is_left_to_the_next_run(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        add(storage, name, age_s=40 * DAY_S)
    ticks = iter(range(10))
    said = expire(storage, now=lambda: NOW_S + 25.0 * next(ticks))
    assert len(run_names(storage)) == 1
    assert "2 runs deleted" in str(said)
    assert "the others are left to the next run, after 60 s" in str(said)


@pytest.mark.slow
def test_run_deletes_the_old_ones_at_its_end(tmp_path: Path, ray_cluster: Any) -> None:
    storage = Storage.open(str(tmp_path / "runs"))
    add(storage, "old", age_s=2 * DAY_S, now_s=time.time())
    result = raydist.run(lambda ctx: None, name="new", storage=str(tmp_path / "runs"), keep_runs="1d")
    assert result.state == "SUCCEEDED"
    assert run_names(storage) == ["new"]
    assert "keep_runs is 1d: 1 run deleted that had ended (old)" in result.notes
