"""Reading from a store: how much is asked for at once, and how often. No test measures a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.order.windows import MAX_LANES, Piece
from raydist.data.sources.ahead import in_order
from raydist.data.sources.parquet import ParquetSource
from tests.conftest import WaitUntil
from tests.support.numbered_source import NumberedSource
from tests.support.object_store import s3_environ
from tests.support.static_store import StaticStore, static_store

_WAIT_S = 60.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticStore]:
    (tmp_path / "bucket/data").mkdir(parents=True)
    for number in range(4):
        table = pa.table({"n": np.arange(100 * number, 100 * (number + 1))})
        pq.write_table(table, tmp_path / f"bucket/data/{number}.parquet", row_group_size=25)
    with static_store(tmp_path) as found:
        for name, value in s3_environ(found.endpoint).items():
            monkeypatch.setenv(name, value)
        yield found


def test_results_come_in_order_though_all_are_made_at_once() -> None:
    together = threading.Barrier(8)

    def double(item: int) -> int:
        together.wait(_WAIT_S)
        return 2 * item

    assert list(in_order(double, range(8), num_threads=8, name="test")) == [2 * item for item in range(8)]


def test_one_thread_is_the_callers_own() -> None:
    found = list(in_order(lambda _: threading.current_thread(), range(3), num_threads=1, name="test"))
    assert found == [threading.current_thread()] * 3


def test_an_error_comes_in_its_place_and_ends_what_has_not_begun(wait_until: WaitUntil) -> None:
    begun: list[int] = []
    is_seen = threading.Event()

    def one(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise ValueError("the second")
        if item > 1:
            is_seen.wait(_WAIT_S)
        return item

    results = in_order(one, range(100), num_threads=2, name="test-error")
    assert next(results) == 0
    with pytest.raises(ValueError, match="the second"):
        next(results)
    is_seen.set()
    wait_until(lambda: not any(thread.name == "test-error" for thread in threading.enumerate()))
    assert len(begun) < 10


def test_groups_of_a_window_are_asked_for_at_once(
    store: StaticStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a file that is opened costs one request beside the reading, which also tells if it changed."""
    source = data.from_parquet("s3://bucket/data")
    num_groups = len(source.group_sizes)
    store.take_counts()
    together, table = threading.Barrier(num_groups), ParquetSource._table

    def waiting(self: ParquetSource, group: int, names: Any) -> pa.Table:
        together.wait(_WAIT_S)
        return table(self, group, names)

    monkeypatch.setattr(ParquetSource, "_table", waiting)
    batches = source.batches(global_batch_size=400, shuffle=False, epochs=1)
    [values] = batches.reader().block(0, 1, 0, 400)
    assert values.reshape(-1).tolist() == list(range(400))
    counts = store.take_counts()
    assert num_groups == counts["HEAD"] == 16
    assert counts["GET"] <= 2 * num_groups  # a footer and a group


def test_windows_of_all_lanes_are_asked_for_at_once() -> None:
    source = NumberedSource([4] * 12 * MAX_LANES)
    source.files = SimpleNamespace(are_remote=True)  # type: ignore[assignment]
    batches = source.batches(
        global_batch_size=MAX_LANES, window_mb=16 * MAX_LANES * source.num_bytes / 1e6, seed=1
    )
    together, read_into = threading.Barrier(MAX_LANES), source.read_into

    def waiting(arrays: Sequence[np.ndarray], piece: Piece) -> None:
        together.wait(_WAIT_S)
        read_into(arrays, piece)

    source.read_into = waiting  # type: ignore[method-assign]
    [values] = batches.reader().block(0, 1, 0, MAX_LANES)
    assert values.shape[1] == MAX_LANES
    together.abort()  # what is read ahead
