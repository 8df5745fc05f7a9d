"""Metrics come back as they were reported, and several attempts make one curve."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raydist.errors import StorageError
from raydist.metrics.merge import as_table, merge_rows
from raydist.metrics.parquet import SCHEMA, MetricsWriter, read_metrics
from raydist.metrics.records import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout

LAYOUT = RunLayout(run="first")
TASK = TaskId.parse("worker/0")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "runs"))


def row(
    *,
    step: int,
    value: float,
    attempt: int = 0,
    task: str = "worker/0",
    name: str = "loss",
    scope: Scope = Scope.GLOBAL,
    epoch: int | None = None,
    wall_time: float = 0.0,
) -> MetricRow:
    return MetricRow(
        run="first",
        attempt=attempt,
        task=TaskId.parse(task),
        step=step,
        epoch=epoch,
        wall_time=wall_time,
        scope=scope,
        name=name,
        value=value,
    )


def test_rows_are_read_back_as_they_were(storage: Storage) -> None:
    rows = [row(step=1, value=0.5, epoch=1, wall_time=1e9), row(step=2, value=-math.inf, scope=Scope.LOCAL)]
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=0)
    writer.append(rows)
    writer.flush()
    assert read_metrics(storage, LAYOUT) == rows


def test_value_that_is_nan_stays_nan(storage: Storage) -> None:
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=0)
    writer.append([row(step=1, value=math.nan)])
    writer.flush()
    assert math.isnan(read_metrics(storage, LAYOUT)[0].value)


def test_file_has_the_documented_name_and_schema(storage: Storage, tmp_path: Path) -> None:
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=3)
    writer.append([row(step=1, value=0.5, attempt=3)])
    writer.flush()
    assert storage.list_names(LAYOUT.metrics) == ["3-worker-0-000000.parquet"]
    assert pq.read_schema(tmp_path / "runs/first/metrics/3-worker-0-000000.parquet").equals(SCHEMA)


def test_second_writer_goes_on_at_the_next_free_number(storage: Storage) -> None:
    for attempt in (0, 0, 1):
        writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=attempt)
        writer.append([row(step=1, value=0.5, attempt=attempt)])
        writer.flush()
    assert storage.list_names(LAYOUT.metrics) == [
        "0-worker-0-000000.parquet",
        "0-worker-0-000001.parquet",
        "1-worker-0-000000.parquet",
    ]


def test_tick_writes_rows_once_they_are_five_seconds_old(storage: Storage) -> None:
    now_s = [0.0]
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=0, clock=lambda: now_s[0])
    writer.append([row(step=1, value=0.5)])
    now_s[0] = 4.9
    writer.tick()
    assert read_metrics(storage, LAYOUT) == []
    now_s[0] = 5.0
    writer.tick()
    assert [stored.step for stored in read_metrics(storage, LAYOUT)] == [1]


def test_rows_appended_by_several_threads_during_flushes_are_stored_once(storage: Storage) -> None:
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=0)

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
    assert sorted(stored.step for stored in read_metrics(storage, LAYOUT)) == list(range(800))


def test_rows_that_could_not_be_written_come_with_the_next_file(storage: Storage) -> None:
    writer = MetricsWriter.open(storage, LAYOUT, task=TASK, attempt=0)
    storage.write_bytes(LAYOUT.metrics, b"a file in the way")
    writer.append([row(step=1, value=0.5)])
    with pytest.raises(StorageError):
        writer.flush()
    storage.delete(LAYOUT.metrics)
    writer.append([row(step=2, value=0.25)])
    writer.flush()
    assert [stored.step for stored in read_metrics(storage, LAYOUT)] == [1, 2]


def test_damaged_file_is_named(storage: Storage) -> None:
    storage.write_bytes(LAYOUT.metrics_segment(TASK, attempt=0, seq=0), b"no parquet")
    with pytest.raises(StorageError, match=r"0-worker-0-000000\.parquet is damaged"):
        read_metrics(storage, LAYOUT)


def test_run_without_metrics_has_none(storage: Storage) -> None:
    assert read_metrics(storage, LAYOUT) == []


def test_later_attempt_replaces_the_steps_that_it_repeats_and_no_other() -> None:
    first = [row(step=step, value=step, attempt=0) for step in (1, 2, 3, 4)]
    second = [row(step=step, value=step + 0.5, attempt=1) for step in (2, 3)]
    merged = merge_rows([*second, *first])
    assert [(merged_row.step, merged_row.value) for merged_row in merged] == [
        (1, 1),
        (2, 2.5),
        (3, 3.5),
        (4, 4),
    ]


@pytest.mark.parametrize(
    "change",
    [{"task": "worker/1"}, {"step": 2}, {"name": "accuracy"}, {"scope": Scope.LOCAL}],
    ids=["task", "step", "name", "scope"],
)
def test_rows_that_differ_in_task_step_name_or_scope_stand_side_by_side(change) -> None:
    rows = [row(step=1, value=0.5), row(**{"step": 1, "value": 0.75, "attempt": 1, **change})]
    assert len(merge_rows(rows)) == 2


def test_later_report_of_one_attempt_replaces_the_earlier() -> None:
    rows = [row(step=1, value=0.5, wall_time=2.0), row(step=1, value=0.75, wall_time=1.0)]
    assert [merged_row.value for merged_row in merge_rows(rows)] == [0.5]


def test_merged_rows_are_sorted_by_step_task_and_name() -> None:
    rows = [
        row(step=2, value=0),
        row(step=1, value=0, task="worker/10"),
        row(step=1, value=0, task="worker/9"),
        row(step=1, value=0, task="worker/9", name="accuracy"),
    ]
    merged = [(merged_row.step, str(merged_row.task), merged_row.name) for merged_row in merge_rows(rows)]
    assert merged == [
        (1, "worker/9", "accuracy"),
        (1, "worker/9", "loss"),
        (1, "worker/10", "loss"),
        (2, "worker/0", "loss"),
    ]


def test_table_has_a_line_per_step_and_task_and_a_column_per_metric() -> None:
    rows = [
        row(step=20, value=0.4, epoch=2),
        row(step=10, value=0.5, epoch=1),
        row(step=10, value=0.9, epoch=1, name="accuracy"),
        row(step=10, value=0.6, epoch=1, attempt=1),
        row(step=10, value=7, name="local_only", scope=Scope.LOCAL),
    ]
    table = as_table(rows)
    assert table.columns == ("step", "epoch", "task", "accuracy", "loss")
    assert table.lines == ((10, 1, "worker/0", 0.9, 0.6), (20, 2, "worker/0", None, 0.4))


def test_table_of_local_values_has_a_line_per_task() -> None:
    rows = [row(step=5, value=index, task=f"worker/{index}", scope=Scope.LOCAL) for index in (1, 0)]
    assert as_table(rows, scope=Scope.LOCAL).lines == ((5, None, "worker/0", 0), (5, None, "worker/1", 1))


def test_table_without_rows_has_only_the_fixed_columns() -> None:
    assert (as_table([]).columns, as_table([]).lines) == (("step", "epoch", "task"), ())
