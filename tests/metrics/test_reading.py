"""Metrics are read as columns, also while the run joins its files, and a damaged file is named."""

from __future__ import annotations

import tracemalloc

import pytest

from raydist.errors import StorageError
from raydist.metrics.parquet import MetricsWriter
from raydist.metrics.reading import COLUMNS, read_columns
from raydist.outcome.status import Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage
from tests.support.metric_rows import row

TASK = TaskId.parse("worker/0")


def store(storage: RunStorage, *, steps: range) -> None:
    writer = MetricsWriter.open(storage, task=TASK, attempt=0)
    writer.append([row(step=step, value=step) for step in steps])
    writer.flush()


def test_values_of_all_files_are_read_in_their_order(storage: RunStorage) -> None:
    for start in range(0, 300, 2):
        store(storage, steps=range(start, start + 2))
    rows = read_columns(storage, scope=Scope.GLOBAL)
    assert rows.schema.equals(COLUMNS)
    assert rows["step"].to_pylist() == list(range(300))


def test_what_is_read_has_no_object_per_row(storage: RunStorage) -> None:
    for start in range(0, 60_000, 20_000):
        store(storage, steps=range(start, start + 20_000))
    read_columns(storage, scope=Scope.GLOBAL)  # what is imported and kept once
    tracemalloc.start()
    try:
        rows = read_columns(storage, scope=Scope.GLOBAL)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.num_rows == 60_000
    assert held_bytes < 60_000 * 5  # an object for each row would take hundreds


def test_file_that_is_listed_and_never_there_is_named(
    storage: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunStorage, "list_names", lambda self, key: ["0-worker-0-000007.parquet"])
    with pytest.raises(StorageError, match=r"0-worker-0-000007\.parquet"):
        read_columns(storage, scope=Scope.GLOBAL)


def test_damaged_file_is_named(storage: RunStorage) -> None:
    storage.write_bytes(storage.metrics_segment(TASK, attempt=0, seq=0), b"no parquet")
    with pytest.raises(StorageError, match=r"0-worker-0-000000\.parquet is damaged"):
        read_columns(storage, scope=Scope.GLOBAL)


@pytest.mark.parametrize("content", [b"no parquet", b"", b"PAR1" * 10, b"PAR1" + b"\0" * 200 + b"PAR1"])
def test_damage_is_told_in_one_sentence_and_the_rest_is_read(storage: RunStorage, content: bytes) -> None:
    store(storage, steps=[3])
    storage.write_bytes(storage.metrics_segment(TASK, attempt=1, seq=0), content)
    told: list[StorageError] = []
    assert read_columns(storage, scope=Scope.GLOBAL, on_damage=told.append)["step"].to_pylist() == [3]
    [sentence] = map(str, told)
    assert sentence.partition(" is damaged: ")[0].endswith("1-worker-0-000000.parquet")
    assert "\n" not in sentence
    assert ". " not in sentence
    assert not sentence.endswith(".")


@pytest.mark.parametrize("column", ["step", "value"])
def test_file_without_a_column_is_damaged(storage: RunStorage, column: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"attempt": [0], "other": [column]}), sink)
    storage.write_bytes(storage.metrics_segment(TASK, attempt=0, seq=0), sink.getvalue().to_pybytes())
    with pytest.raises(StorageError, match=r"000000\.parquet is damaged"):
        read_columns(storage, scope=Scope.GLOBAL)


def test_flipped_byte_is_found_wherever_values_are(storage: RunStorage) -> None:
    store(storage, steps=range(50))
    key = storage.metrics_segment(TASK, attempt=0, seq=0)
    content, whole = storage.read_bytes(key), read_columns(storage, scope=Scope.GLOBAL)
    num_damaged = 0
    places = range(0, len(content), 3)
    for place in places:
        storage.write_bytes(key, content[:place] + bytes([content[place] ^ 0x90]) + content[place + 1 :])
        try:
            assert read_columns(storage, scope=Scope.GLOBAL).equals(whole), place
        except StorageError:
            num_damaged += 1
    assert num_damaged > len(places) / 2


def test_run_without_metrics_has_none(storage: RunStorage) -> None:
    assert read_columns(storage, scope=Scope.GLOBAL).num_rows == 0
