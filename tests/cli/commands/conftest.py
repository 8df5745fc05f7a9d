from __future__ import annotations

import time
from typing import Any

import pytest

from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.claims import Claim, ClaimStore, hold, let_go, this_process
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter
from tests.support.records import make_record

STATES = ("live", "finished", "failed", "damaged")


def spec_of(**params: Any) -> dict[str, Any]:
    entry_point = {"file": "digits.py", "module": None, "function": "train"}
    return {"params": params, "seed": params.get("seed", 0), "workers": "2", "entry_point": entry_point}


@pytest.fixture
def four_runs(runs_uri: str) -> Any:
    """A live, a finished, a failed and a damaged run, on a folder and on S3, by their names."""
    runs = {name: open_run(runs_uri, run=name) for name in STATES}
    hour_ago = time.time() - 3600
    _add(runs["finished"], "SUCCEEDED", hour_ago, steps=20, metrics={"loss": 0.25}, spec=spec_of(epochs=3))
    error = {"type": "ValueError", "message": "ValueError: bad batch", "task": "worker/1", "exit_code": 1}
    facts = {"steps": 7, "metrics": {"loss": 0.5}, "spec": spec_of(epochs=4, rate=0.5), "error": error}
    _add(runs["failed"], "FAILED", hour_ago - 60, **facts)
    _add(runs["live"], "RUNNING", time.time(), driver=this_process(), spec=spec_of())
    claim = Claim(number=0, id="held-by-the-test", holder=this_process(), at_s=time.time())
    assert ClaimStore(runs["live"]).add(claim)
    _add(runs["damaged"], "FAILED", hour_ago)
    runs["damaged"].write_bytes(runs["damaged"].record, b"{")
    hold(claim.id)
    yield runs
    let_go(claim.id)


def _add(storage: RunStorage, state: str, at_s: float, **facts: Any) -> None:
    facts = {"strategy": "multi_worker_mirrored", "claim": 0 if state == "RUNNING" else None, **facts}
    RunRecordStore(storage, clock=lambda: at_s).replace(make_record(storage, state=state, **facts))
    store = CheckpointStore(storage)
    for step in (10, 20):
        store.commit(step=step, attempt=0, files={"state.json": b"{}", "v.npz": b"x" * 100}, info={})
    storage.write_bytes(storage.exported_model, b"keras")
    storage.write_bytes(f"{storage.exported_saved_model}/variables/index", b"index")
    events = EventWriter.open(storage)
    events.append({"event": "attempt", "at_s": at_s, "attempt": 0, "message": "worker/0 failed first"})
    events.flush()
