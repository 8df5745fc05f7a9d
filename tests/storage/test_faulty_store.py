"""An object store that answers 500 and 503, hangs up, or is gone: nothing is torn, doubled or lost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.outcome.status import RunState
from raydist.spec.tasks import TaskId
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Storage
from raydist.storage.logs import LogUploader, read_log
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter, read_events
from tests.support.faulty_http import Choice, Fault, FaultyProxy, HttpRequest
from tests.support.records import make_record

PASSING = [fault for fault in Fault if fault not in (Fault.HANGING, Fault.FORBIDDEN)]
BIG = os.urandom(11 * 1024 * 1024 + 7)  # more than a part of a multipart upload
FILES = {"state.json": b'{"epoch": 1}', "weights.npz": b"weights" * 100_000}


def every(nth: int, faults: Sequence[Fault]) -> Choice:
    """Every `nth` request fails, the first one too, in another way each time."""

    def choose(request: HttpRequest) -> Fault | None:
        return faults[request.number // nth % len(faults)] if request.number % nth == 0 else None

    return choose


def always(fault: Fault, *, method: str | None = None, path_end: str = "") -> Choice:
    def choose(request: HttpRequest) -> Fault | None:
        is_meant = method in (None, request.method) and request.path.endswith(path_end)
        return fault if is_meant else None

    return choose


@pytest.fixture
def faulty_storage(proxy: FaultyProxy, s3_uri: str) -> RunStorage:
    return open_run(s3_uri, run="first").patient()


@pytest.mark.exhaustive("INTERNAL_ERROR", "SLOW_DOWN", covered_by="the four faults of the default run")
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    # 500 is to the client what 503 is.
    [pytest.param(one, marks=pytest.mark.slow if one is Fault.INTERNAL_ERROR else ()) for one in PASSING],
    ids=lambda fault: fault.name,
)
def test_every_verb_survives_faults(
    faulty_storage: Storage, proxy: FaultyProxy, tmp_path: Path, fault: Fault
) -> None:
    proxy.choose = every(3, [fault])
    faulty_storage.check_writable()
    (tmp_path / "big").write_bytes(BIG)
    faulty_storage.upload(tmp_path / "big", "run/big")
    faulty_storage.write_bytes("run/small", b"small")
    assert faulty_storage.list_names("run") == ["big", "small"]
    assert faulty_storage.exists("run/small")
    assert faulty_storage.size("run/small") == 5
    assert faulty_storage.read_bytes("run/small") == b"small"
    faulty_storage.download("run/big", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == BIG
    faulty_storage.delete("run")
    assert faulty_storage.list_names("") == []
    assert proxy.faults[fault] >= 3


@pytest.mark.slow
def test_writers_of_a_run_survive_a_share_of_faults(
    faulty_storage: RunStorage, proxy: FaultyProxy, task: TaskId, tmp_path: Path
) -> None:
    proxy.choose = every(3, [Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.LOST_ANSWER, Fault.DROPPED])
    store = CheckpointStore(faulty_storage)
    events, record = EventWriter.open(faulty_storage), RunRecordStore(faulty_storage)
    spool = tmp_path / "log"
    log = LogUploader(faulty_storage, task=task, attempt=0, spool_path=spool)
    for number in range(3):
        events.append({"number": number})
        events.flush()
        with spool.open("a") as printed:
            printed.write(f"line {number}\n")
        log.flush()
        store.commit(step=number, attempt=0, files=FILES)
    store.prune(keep=2)
    record.replace(make_record(faulty_storage, state="SUCCEEDED"))
    assert [event["number"] for event in read_events(faulty_storage)] == [0, 1, 2]
    assert read_log(faulty_storage, task=task, attempt=0) == "line 0\nline 1\nline 2\n"
    assert [store.read(checkpoint) for checkpoint in store.committed()] == [FILES, FILES]
    assert record.read().state is RunState.SUCCEEDED
    assert min(proxy.faults.values()) >= 3


def test_segments_of_an_outage_come_once_and_in_order_afterwards(
    faulty_storage: RunStorage, proxy: FaultyProxy, task: TaskId, tmp_path: Path, clock
) -> None:
    events = EventWriter.open(faulty_storage, clock=clock)
    spool = tmp_path / "log"
    log = LogUploader(faulty_storage, task=task, attempt=0, spool_path=spool, clock=clock)
    outages = [Fault.SLOW_DOWN, None, Fault.LOST_ANSWER, Fault.CUT_UPLOAD, None]
    known: list[int] = []
    for number, fault in enumerate(outages):
        proxy.choose = lambda request, fault=fault: fault
        events.append({"number": number})
        with spool.open("a") as printed:
            printed.write(f"line {number}\n")
        clock.advance(6)
        for writer in (events, log):
            if fault is None:
                writer.tick()
            else:
                with pytest.raises(StorageError):
                    writer.tick()
        proxy.choose = lambda request: None
        found = [event["number"] for event in read_events(faulty_storage)]
        assert found[: len(known)] == known  # the object that grows is not lost
        known = found
    assert [event["number"] for event in read_events(faulty_storage)] == [0, 1, 2, 3, 4]
    names = faulty_storage.list_names(faulty_storage.events)
    assert [name for name in names if name.endswith(".jsonl")] == ["000000.jsonl"]
    lines = [f"line {number}\n" for number in range(len(outages))]
    assert read_log(faulty_storage, task=task, attempt=0) == "".join(lines)


@pytest.mark.slow
def test_outage_that_lasts_is_one_error_and_the_checkpoint_before_stays(
    proxy: FaultyProxy, s3_uri: str
) -> None:
    storage = open_run(s3_uri, run="first")
    store = CheckpointStore(storage)
    before = store.commit(step=10, attempt=0, files=FILES)
    proxy.choose = always(Fault.SLOW_DOWN, method="PUT", path_end="weights.npz")
    with pytest.raises(
        StorageError, match=r"cannot write s3://.*weights\.npz: .*and so for \d+ s; "
    ) as caught:
        store.commit(step=20, attempt=0, files=FILES)
    assert "\n" not in str(caught.value)
    proxy.choose = lambda request: None
    assert store.latest_whole().checkpoint == before
    assert store.latest_whole().damaged == ()
    assert storage.list_names(storage.checkpoints) == ["step-10-a0"]
    store.commit(step=20, attempt=0, files=FILES)
    assert [checkpoint.step for checkpoint in store.committed()] == [20, 10]


def test_upload_that_is_cut_for_good_leaves_the_old_object(
    proxy: FaultyProxy, s3_uri: str, tmp_path: Path
) -> None:
    storage = open_run(s3_uri, run="first").hasty()
    storage.write_bytes("run/big", b"old")
    (tmp_path / "big").write_bytes(BIG)
    proxy.choose = always(Fault.CUT_UPLOAD, method="PUT")
    with pytest.raises(StorageError, match="cannot upload to s3://"):
        storage.upload(tmp_path / "big", "run/big")
    assert proxy.faults[Fault.CUT_UPLOAD] >= 2
    assert storage.read_bytes("run/big") == b"old"


@pytest.mark.slow
def test_store_that_never_answers_is_an_error(proxy: FaultyProxy, s3_uri: str) -> None:
    storage = open_run(s3_uri, run="first").hasty()
    proxy.choose = always(Fault.HANGING)
    with pytest.raises(StorageError, match=r"NETWORK_CONNECTION .*check that this host reaches the store"):
        storage.read_bytes("run/small")


def test_missing_bucket_is_asked_for_once(proxy: FaultyProxy, s3_uri: str) -> None:
    storage = open_run(s3_uri.replace("bucket-", "other-"), run="first").patient()
    with pytest.raises(StorageError, match="create the bucket first"):
        storage.write_bytes("run/small", b"x")
    assert proxy.num_requests == 1


def test_missing_right_is_asked_for_once(faulty_storage: Storage, proxy: FaultyProxy) -> None:
    proxy.choose = always(Fault.FORBIDDEN)
    with pytest.raises(StorageError, match=r"ACCESS_DENIED .*check the credentials"):
        faulty_storage.write_bytes("run/small", b"x")
    assert proxy.faults == {Fault.FORBIDDEN: 1}
