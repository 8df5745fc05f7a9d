"""Events reach storage as closed segments, in order, each once."""

from __future__ import annotations

import pytest

from raydist.errors import StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import EventWriter, next_seq, read_events
from tests.storage.conftest import FakeClock


def test_events_are_read_back_in_order_over_segments(storage: RunStorage) -> None:
    events = EventWriter.open(storage)
    for number in range(3):
        events.append({"event": "state", "number": number})
        events.flush()
    assert storage.list_names(storage.events) == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]
    assert [event["number"] for event in read_events(storage)] == [0, 1, 2]


def test_events_of_a_run_without_any_are_empty(storage: RunStorage) -> None:
    assert read_events(storage) == []


def test_tick_writes_only_what_is_five_seconds_old(local_storage: RunStorage, clock: FakeClock) -> None:
    events = EventWriter.open(local_storage, clock=clock)
    events.append({"event": "a"})
    clock.advance(4.9)
    events.tick()
    assert read_events(local_storage) == []
    clock.advance(0.2)
    events.append({"event": "b"})
    events.tick()
    assert read_events(local_storage) == [{"event": "a"}, {"event": "b"}]


def test_tick_writes_at_once_when_four_megabytes_wait(local_storage: RunStorage, clock: FakeClock) -> None:
    events = EventWriter.open(local_storage, clock=clock)
    events.append({"text": "x" * (4 * 1024 * 1024)})
    events.tick()
    assert local_storage.list_names(local_storage.events) == ["000000.jsonl"]


def test_tick_and_flush_without_events_write_nothing(local_storage: RunStorage, clock: FakeClock) -> None:
    events = EventWriter.open(local_storage, clock=clock)
    clock.advance(60)
    events.tick()
    events.flush()
    assert local_storage.list_names(local_storage.events) == []


def test_second_controller_goes_on_after_the_first(local_storage: RunStorage) -> None:
    for number in range(2):
        events = EventWriter.open(local_storage)
        events.append({"number": number})
        events.flush()
    assert read_events(local_storage) == [{"number": 0}, {"number": 1}]


def test_events_that_could_not_be_written_come_with_the_next_segment(local_storage: RunStorage) -> None:
    events = EventWriter.open(local_storage)
    local_storage.write_bytes(local_storage.events, b"a file in the way")
    events.append({"number": 0})
    with pytest.raises(StorageError):
        events.flush()
    local_storage.delete(local_storage.events)
    events.append({"number": 1})
    events.flush()
    assert read_events(local_storage) == [{"number": 0}, {"number": 1}]


def test_damaged_segment_is_named(local_storage: RunStorage) -> None:
    local_storage.write_bytes(local_storage.event_segment(0), b'{"number": 0}\n{"num')
    with pytest.raises(StorageError, match=r"events/000000\.jsonl is damaged"):
        read_events(local_storage)


def test_next_seq_counts_only_names_with_the_prefix(local_storage: Storage) -> None:
    for name in (
        "0-worker-0-000004.parquet",
        "0-worker-00-000009.parquet",
        "1-worker-0-000007.parquet",
        "x.txt",
    ):
        local_storage.write_bytes(f"m/{name}", b"")
    assert next_seq(local_storage, "m", prefix="0-worker-0-") == 5
    assert next_seq(local_storage, "m", prefix="2-worker-0-") == 0
