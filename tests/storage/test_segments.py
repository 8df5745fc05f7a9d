"""Events reach storage as segments, in order, each once."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.local_files import append_whole
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import SEGMENT_GROWS_TO_BYTES, EventWriter, SegmentWriter, next_seq, read_events
from tests.storage.conftest import FakeClock


def test_events_are_read_back_in_order_from_few_segments(storage: RunStorage) -> None:
    events = EventWriter.open(storage)
    for number in range(12):
        events.append({"number": number, "text": "x" * (SEGMENT_GROWS_TO_BYTES // 4)})
        events.flush()
        assert [event["number"] for event in read_events(storage)] == [*range(number + 1)]
    assert storage.list_names(storage.events) == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]


def test_file_that_a_reader_keeps_open_grows_in_its_place(local_storage: RunStorage) -> None:
    segments = SegmentWriter[bytes](
        local_storage,
        segment_key="s{}".format,
        encode=b"".join,
        item_bytes=len,
        first_seq=0,
        is_appended=True,
    )
    segments.append(b"one ")
    segments.flush()
    place = local_storage.local_path("s0")
    with place.open() as reader:
        assert reader.read() == "one "
        segments.append(b"two ", b"three")
        segments.flush()
        assert reader.read() == "two three"


def test_file_to_append_to_is_no_link(local_storage: RunStorage, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"of somebody")
    link = local_storage.local_path("s0")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(other)
    with pytest.raises(StorageError, match="a symbolic link there leads out of"):
        local_storage.append("s0", b"more")
    assert other.read_bytes() == b"of somebody"


def test_full_disk_leaves_a_file_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "events"
    append_whole(place, b"whole")
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, resource.RLIM_INFINITY))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="File too large"):
            append_whole(place, b"torn off")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, before)
    assert place.read_bytes() == b"whole"


def test_disk_that_tells_that_it_is_full_when_a_file_is_closed_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does: what was written is only then sent."""
    place, close = tmp_path / "events", os.close
    append_whole(place, b"whole")

    def flush(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "close", flush)
    with pytest.raises(OSError, match="No space left"):
        append_whole(place, b"torn off")
    assert place.read_bytes() == b"whole"


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


def test_what_waited_through_an_outage_is_in_segments_that_readers_take(
    local_storage: RunStorage, clock: FakeClock
) -> None:
    events = EventWriter.open(local_storage, clock=clock)
    texts = [str(number) * 1024 * 1024 for number in range(10)]
    for text in texts:
        events.append({"text": text})
    events.flush()
    assert local_storage.list_names(local_storage.events) == [f"{number:06}.jsonl" for number in range(4)]
    assert [event["text"] for event in read_events(local_storage)] == texts


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
