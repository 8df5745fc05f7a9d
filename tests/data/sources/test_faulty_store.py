"""Input on a store that fails for a moment, and for longer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.data.sources.files import DataFiles
from raydist.data.sources.source import GroupedSource
from raydist.errors import DataError, StorageError
from raydist.storage import failures
from raydist.storage.filesystem import FoundFile, Storage
from tests.support.faulty_http import Fault, FaultyProxy
from tests.support.image_files import png

NUM_ROWS = 24


def parquet(uri: str) -> list[np.ndarray]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": np.arange(NUM_ROWS)}), sink, row_group_size=4)
    Storage.open(uri).write_bytes("a/data.parquet", sink.getvalue().to_pybytes())
    return whole(data.from_parquet(f"{uri}/a"))


def csv(uri: str) -> list[np.ndarray]:
    Storage.open(uri).write_bytes("a/data.csv", b"n\n" + b"1\n" * NUM_ROWS)
    return whole(data.from_csv(f"{uri}/a"))


def tfrecord(uri: str) -> list[np.ndarray]:
    record = (3).to_bytes(8, "little") + bytes(4) + b"abc" + bytes(4)
    Storage.open(uri).write_bytes("a/data", record * NUM_ROWS)
    return whole(data.from_tfrecord(f"{uri}/a"))


def images(uri: str) -> list[np.ndarray]:
    for number in range(NUM_ROWS):
        Storage.open(uri).write_bytes(f"a/{number}.png", png(np.zeros((1, 1, 3), np.uint8)))
    return data.from_images(uri).take(np.arange(NUM_ROWS))


def whole(source: GroupedSource) -> list[np.ndarray]:
    return source.read([Piece(group, 0, int(size)) for group, size in enumerate(source.group_sizes)])


@pytest.mark.exhaustive("images", covered_by="the other sources read by the same files")
@pytest.mark.parametrize("read", [parquet, csv, tfrecord, images])
def test_requests_that_fail_for_a_moment_are_made_again(
    proxy: FaultyProxy, s3_uri: str, read: Callable[[str], list[np.ndarray]]
) -> None:
    faults = [Fault.SLOW_DOWN, Fault.DROPPED, Fault.CUT_ANSWER]
    proxy.choose = lambda request: (
        faults[request.number // 3 % 3]
        if request.method in ("GET", "HEAD") and not request.number % 3
        else None
    )
    assert len(read(s3_uri)[0]) == NUM_ROWS
    assert sum(proxy.faults.values()) >= 2


@pytest.mark.slow
def test_store_that_stays_away_is_a_storage_error(
    proxy: FaultyProxy, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4: there is nothing to fix in the input."""
    monkeypatch.setattr(failures, "PATIENCE_S", 1.0)
    parquet(s3_uri)
    source = data.from_parquet(f"{s3_uri}/a")
    proxy.choose = lambda request: Fault.SLOW_DOWN
    with pytest.raises(StorageError, match=r"cannot read .*data\.parquet: .* try later"):
        whole(source)
    monkeypatch.setattr(failures, "SHORT_PATIENCE_S", 1.0)
    with pytest.raises(StorageError, match=r"cannot read .*/a: .* try later"):
        data.from_parquet(f"{s3_uri}/a")
    proxy.choose = lambda request: None
    assert len(whole(source)[0]) == NUM_ROWS


def test_missing_right_is_a_data_error(proxy: FaultyProxy, s3_uri: str) -> None:
    parquet(s3_uri)
    proxy.choose = lambda request: Fault.FORBIDDEN
    with pytest.raises(DataError, match=r"from_parquet cannot read .*check the credentials"):
        data.from_parquet(f"{s3_uri}/a")


def test_times_of_a_list_may_be_finer_than_those_of_a_file(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MinIO's are: milliseconds in a list, seconds in the answer to HEAD."""
    parquet(s3_uri)
    listed = Storage.find_files

    def with_milliseconds(self: Storage) -> list[FoundFile]:
        return [one._replace(modified_ns=one.modified_ns + 123_000_000) for one in listed(self)]

    monkeypatch.setattr(Storage, "find_files", with_milliseconds)
    assert len(whole(data.from_parquet(f"{s3_uri}/a"))[0]) == NUM_ROWS
    monkeypatch.setattr(Storage, "find_files", lambda self: [
        one._replace(modified_ns=one.modified_ns - 10**9) for one in listed(self)
    ])  # fmt: skip
    with pytest.raises(DataError, match="has changed since it was opened"):
        DataFiles(f"{s3_uri}/a", what="test").check(0)
