"""Metrics come back as they were reported."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from raydist.errors import StorageError
from raydist.metrics.parquet import GROWS_TO_BYTES, ROW_BYTES, SCHEMA, MetricsWriter
from raydist.outcome.status import Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage
from tests.support.metric_rows import read_rows, row

TASK = TaskId.parse("worker/0")


def test_rows_are_read_back_as_they_were(storage: RunStorage) -> None:
    rows = [row(step=1, value=0.5, epoch=1, wall_time=1e9), row(step=2, value=-math.inf, scope=Scope.LOCAL)]
    writer = MetricsWriter.open(storage, task=TASK, attempt=0)
    writer.append(rows)
    writer.flush()
    assert read_rows(storage) == rows


def test_rows_that_wait_are_taken_over_by_another_process(storage: RunStorage) -> None:
    rows = [
        row(step=np.int64(1), value=np.float32(0.5), epoch=1, wall_time=1e9),  # as users give them
        row(step=2, value=math.inf, scope=Scope.LOCAL),
    ]
    dead, heir = (MetricsWriter.open(storage, task=TASK, attempt=attempt) for attempt in (0, 1))
    dead.append(rows)
    heir.take_over(dead.waiting())
    heir.flush()
    assert read_rows(storage) == rows


def test_value_that_is_nan_stays_nan(storage: RunStorage) -> None:
    writer = MetricsWriter.open(storage, task=TASK, attempt=0)
    writer.append([row(step=1, value=math.nan)])
    writer.flush()
    assert math.isnan(read_rows(storage)[0].value)


def test_file_has_the_documented_name_and_schema(storage: RunStorage, tmp_path: Path) -> None:
    writer = MetricsWriter.open(storage, task=TASK, attempt=3)
    writer.append([row(step=1, value=0.5, attempt=3)])
    writer.flush()
    assert storage.list_names(storage.metrics) == ["3-worker-0-000000.parquet"]
    assert pq.read_schema(tmp_path / "runs/first/metrics/3-worker-0-000000.parquet").equals(SCHEMA)


def test_second_writer_goes_on_at_the_next_free_number(storage: RunStorage) -> None:
    for attempt in (0, 0, 1):
        writer = MetricsWriter.open(storage, task=TASK, attempt=attempt)
        writer.append([row(step=1, value=0.5, attempt=attempt)])
        writer.flush()
    assert storage.list_names(storage.metrics) == [
        "0-worker-0-000000.parquet",
        "0-worker-0-000001.parquet",
        "1-worker-0-000000.parquet",
    ]


def test_tick_writes_rows_once_they_are_five_seconds_old(storage: RunStorage) -> None:
    now_s = [0.0]
    writer = MetricsWriter.open(storage, task=TASK, attempt=0, clock=lambda: now_s[0])
    writer.append([row(step=1, value=0.5)])
    now_s[0] = 4.9
    writer.tick()
    assert read_rows(storage) == []
    now_s[0] = 5.0
    writer.tick()
    assert [stored.step for stored in read_rows(storage)] == [1]


def test_rows_appended_by_several_threads_during_flushes_are_stored_once(storage: RunStorage) -> None:
    writer = MetricsWriter.open(storage, task=TASK, attempt=0)

    def report(first_step: int) -> None:
        for step in range(first_step, first_step + 200):
            writer.append([row(step=step, value=0.5)])
            if step % 50 == 0:
                writer.flush()

    threads = [threading.Thread(target=report, args=(index * 200,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    assert sorted(stored.step for stored in read_rows(storage)) == list(range(800))


def test_rows_that_could_not_be_written_come_with_the_next_file(storage: RunStorage) -> None:
    writer = MetricsWriter.open(storage, task=TASK, attempt=0)
    storage.write_bytes(storage.metrics, b"a file in the way")
    writer.append([row(step=1, value=0.5)])
    with pytest.raises(StorageError):
        writer.flush()
    storage.delete(storage.metrics)
    writer.append([row(step=2, value=0.25)])
    writer.flush()
    assert [stored.step for stored in read_rows(storage)] == [1, 2]


def test_rows_of_hours_are_in_few_files(storage: RunStorage) -> None:
    now_s = [0.0]
    writer = MetricsWriter.open(storage, task=TASK, attempt=0, clock=lambda: now_s[0])
    rows_at_once = GROWS_TO_BYTES // ROW_BYTES // 4 + 1
    for number in range(9):
        steps = range(number * rows_at_once, (number + 1) * rows_at_once)
        writer.append(row(step=step, value=step) for step in steps)
        now_s[0] += 5.0
        writer.tick()
    assert storage.list_names(storage.metrics) == [f"0-worker-0-{seq:06d}.parquet" for seq in range(3)]
    assert [stored.step for stored in read_rows(storage)] == list(range(9 * rows_at_once))
