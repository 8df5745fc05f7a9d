"""A run that continues from a checkpoint of another one."""

from __future__ import annotations

import pytest

from raydist.errors import CheckpointError
from raydist.storage.checkpoint_marker import STATE_FILE, decode_state, encode_state
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.inheritance import inherit, split_checkpoint_uri
from raydist.storage.run_record import RunRecordStore, read_record
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.records import make_record

FILES = {STATE_FILE: encode_state({"step": 1}), "variables.npz": b"weights"}


@pytest.fixture
def donor(storage_uri: str) -> RunStorage:
    run = open_run(storage_uri, run="donor")
    for step in (10, 20):
        CheckpointStore(run).commit(step=step, attempt=1, files=FILES, info={"epoch": step // 10})
    RunRecordStore(run).replace(make_record(run, state="RUNNING", attempts=2, spec={"params": {"rate": 0.1}}))
    return run


def uri_of(run: RunStorage, step: int) -> str:
    return run.uri(run.checkpoint(step=step, attempt=1))


def test_copy_is_the_newest_of_a_run_that_is_further(donor: RunStorage, storage_uri: str) -> None:
    run = open_run(storage_uri, run="heir")
    CheckpointStore(run).commit(step=90, attempt=0, files=FILES)
    RunRecordStore(run).replace(make_record(run, state="CANCELLED", attempts=1))
    copy = inherit(uri_of(donor, 20), run=run)
    assert (copy.step, copy.attempt, copy.info) == (20, 1, {"epoch": 2, "inherited_from": uri_of(donor, 20)})
    newest = CheckpointStore(run).newest()
    assert newest == copy
    files = CheckpointStore(run).read(copy)
    assert decode_state(files[STATE_FILE]) == {"step": 1, "is_inherited": True}
    assert files["variables.npz"] == b"weights"
    assert decode_state(CheckpointStore(donor).read(CheckpointStore(donor).committed()[0])[STATE_FILE]) == {
        "step": 1
    }


def test_run_without_a_record_gets_one_to_resume(donor: RunStorage, storage_uri: str) -> None:
    run = open_run(storage_uri, run="heir")
    assert inherit(uri_of(donor, 10), run=run).attempt == 0
    record = read_record(run)
    assert (record.run, record.state.value, record.attempts, record.driver) == ("heir", "CANCELLED", 0, None)


def test_values_are_those_of_the_weights_and_not_what_the_run_had_before(
    donor: RunStorage, storage_uri: str
) -> None:
    info = {"epoch": 3, "metrics": {"loss": 0.25}}
    CheckpointStore(donor).commit(step=30, attempt=1, files=FILES, info=info)
    run = open_run(storage_uri, run="heir")
    RunRecordStore(run).replace(make_record(run, state="CANCELLED", metrics={"loss": 2.0, "rate": 1.0}))
    inherit(uri_of(donor, 30), run=run)
    assert read_record(run).metrics == {"loss": 0.25}
    inherit(uri_of(donor, 20), run=run)  # which has none
    assert read_record(run).metrics == {}


def test_newest_checkpoint_takes_the_place_of_one_that_was_pruned(
    donor: RunStorage, storage_uri: str
) -> None:
    CheckpointStore(donor).prune(keep=1)
    assert inherit(uri_of(donor, 10), run=open_run(storage_uri, run="heir")).step == 20


def test_ends_of_fits_before_it_are_copied_too(donor: RunStorage, storage_uri: str) -> None:
    ends = {"ended_fits": [[0, 10, 1]]}
    files = {**FILES, STATE_FILE: encode_state({"step": 30, **ends})}
    CheckpointStore(donor).commit(step=30, attempt=1, files=files, info=ends)
    run = open_run(storage_uri, run="heir")
    RunRecordStore(run).replace(make_record(run, state="CANCELLED", attempts=4))
    own, copy = CheckpointStore(run), inherit(uri_of(donor, 30), run=run)
    assert copy.info["ended_fits"] == decode_state(own.read(copy)[STATE_FILE])["ended_fits"] == [[0, 10, 4]]
    assert own.read(own.find(step=10, attempt=4)) == FILES


def test_what_is_no_checkpoint_is_refused(storage_uri: str) -> None:
    run = open_run(storage_uri, run="heir")
    with pytest.raises(CheckpointError, match="is not a checkpoint of raydist"):
        inherit("/tmp/model.keras", run=run)
    with pytest.raises(CheckpointError, match="run gone has no checkpoint"):
        inherit(run.uri("gone/checkpoints/step-1-a0"), run=run)


def test_options_of_a_storage_stay_with_it() -> None:
    uri = "s3://bucket/runs/r/checkpoints/step-1-a0?endpoint_override=host:9000"
    assert split_checkpoint_uri(uri) == ("s3://bucket/runs?endpoint_override=host:9000", "r", "step-1-a0")
