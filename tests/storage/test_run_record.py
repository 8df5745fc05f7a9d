"""run.json is whole, keeps its keys and its time of creation, and names near runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from raydist.errors import MistakeError, StorageError
from raydist.outcome.codec import as_plain
from raydist.outcome.status import RunState
from raydist.storage.filesystem import Storage
from raydist.storage.run_names import find_run, run_names
from raydist.storage.run_record import RunRecord, RunRecordStore, read_record
from raydist.storage.run_removal import DamagedRecord, list_runs
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.faulty_http import HttpRequest, faulty_proxy
from tests.support.records import make_record


def test_record_is_read_back_with_every_key(storage: RunStorage) -> None:
    RunRecordStore(storage, clock=lambda: 5.0).replace(
        make_record(storage, state="RUNNING", steps=7, steps_repeated=1)
    )
    assert (
        json.loads(storage.read_text(storage.record))
        == as_plain(read_record(storage))
        == {
            "run": "first",
            "state": "RUNNING",
            "strategy": "",
            "keras": "",
            "attempts": 0,
            "steps": 7,
            "steps_repeated": 1,
            "metrics": {},
            "value": None,
            "best": None,
            "evaluation": None,
            "progress": None,
            "checkpoint": None,
            "storage": storage.uri("first"),
            "tasks": [],
            "error": None,
            "notes": [],
            "timings": {},
            "stragglers": [],
            "failures": [],
            "spec": {},
            "plan": {},
            "created_at_s": 5.0,
            "updated_at_s": 5.0,
            "driver": None,
            "datasets": [],
            "code": None,
            "environment": {"hosts": []},
            "versions": {},
            "claim": None,
        }
    )


def test_resumed_run_keeps_its_time_of_creation(
    local_storage: RunStorage, clock: Callable[[], float]
) -> None:
    RunRecordStore(local_storage, clock=lambda: 5.0).replace(make_record(local_storage, state="FAILED"))
    RunRecordStore(local_storage, clock=clock).replace(make_record(local_storage))
    record = read_record(local_storage)
    assert (record.created_at_s, record.updated_at_s) == (5.0, 1000.0)


def test_run_was_created_when_it_was_submitted(local_storage: RunStorage) -> None:
    """Its first record is written once a Ray has started."""
    store = RunRecordStore(local_storage, clock=lambda: 50.0)
    for total_s in (6.5, 20.0):
        store.replace(make_record(local_storage, timings={"total": total_s}))
    assert read_record(local_storage).created_at_s == 43.5


def test_credentials_are_not_stored(local_storage: RunStorage) -> None:
    store = RunRecordStore(local_storage)
    store.replace(
        make_record(
            local_storage,
            spec={"storage": "s3://me:hush@bucket", "params": {"api_key": "hush"}},
            notes=["s3://a:hush@b"],
        )
    )
    assert "hush" not in local_storage.read_text(local_storage.record)


def test_loss_that_is_nan_leaves_valid_json(local_storage: RunStorage) -> None:
    RunRecordStore(local_storage).replace(make_record(local_storage, metrics={"loss": float("nan")}))
    text = local_storage.read_text(local_storage.record)
    assert json.loads(text, parse_constant=pytest.fail)["metrics"] == {"loss": None}


def test_store_knows_whether_the_run_exists(local_storage: RunStorage) -> None:
    store = RunRecordStore(local_storage)
    assert not store.exists()
    store.replace(make_record(local_storage))
    assert store.exists()
    assert store.read().state is RunState.STARTING


@pytest.mark.parametrize(
    ("names", "asked", "hint"),
    [
        pytest.param(["cifar-1", "digits"], "cifra-1", r"did you mean cifar-1\?", id="near"),
        pytest.param(["cifar-1"], "zzz", "`raydist list --storage {storage}` shows", id="far"),
        pytest.param([], "zzz", "--storage", id="no_runs"),
    ],
)
def test_unknown_run_is_a_mistake_with_near_names(
    local_storage: Storage, names: list[str], asked: str, hint: str
) -> None:
    for name in names:
        folder = RunStorage(local_storage, run=name)
        RunRecordStore(folder).replace(make_record(folder))
    with pytest.raises(
        MistakeError, match=rf"no run named '{asked}' in .*{hint.format(storage=local_storage.uri())}"
    ):
        read_record(RunStorage(local_storage, run=asked))


def test_folder_of_a_run_is_no_storage(local_storage: RunStorage) -> None:
    RunRecordStore(local_storage).replace(make_record(local_storage))
    folder = local_storage.uri(local_storage.run)
    with pytest.raises(MistakeError, match=f"is the folder of one run.*--storage {local_storage.uri()}$"):
        find_run(Storage.open(folder), "first")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe"], ids=["empty", "torn", "no_object", "no_text"]
)
def test_damaged_record_is_named(local_storage: RunStorage, content: bytes) -> None:
    local_storage.write_bytes(local_storage.record, content)
    with pytest.raises(StorageError, match=r"first/run\.json is damaged"):
        read_record(local_storage)


def test_list_runs_is_newest_first_and_survives_a_damaged_one(storage: Storage) -> None:
    for created_at_s, name in ((1.0, "old"), (2.0, "new")):
        folder = RunStorage(storage, run=name)
        store = RunRecordStore(folder, clock=lambda now_s=created_at_s: now_s)
        store.replace(make_record(folder, state="SUCCEEDED"))
    storage.write_bytes("broken/run.json", b"{")
    storage.write_bytes("no-run/other.txt", b"")
    runs = list_runs(storage).runs
    assert [run.run for run in runs] == ["new", "old", "broken"]
    assert isinstance(runs[2], DamagedRecord)
    assert "damaged" in runs[2].error.message
    assert run_names(storage) == ["broken", "new", "old"]


def test_record_that_is_replaced_while_it_is_read_is_whole(
    s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = RunRecordStore(direct := open_run(s3_uri, run="first"))
    written.replace(make_record(direct, state="RUNNING"))
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        gets = iter(range(100))

        def replace_between_size_and_content(request: HttpRequest) -> None:
            if request.method == "GET" and request.path.endswith("run.json") and (number := next(gets)) < 2:
                notes = ("x" * 50,) * 40 * (number + 1)
                written.replace(make_record(direct, state="RUNNING", notes=notes))

        proxy.choose = replace_between_size_and_content
        storage = open_run(s3_uri, run="first")
        assert len(read_record(storage).notes) == 80
        assert next(gets) == 3
        listed = list_runs(Storage.open(s3_uri)).runs
    assert [len(run.notes) for run in listed if isinstance(run, RunRecord)] == [80]
