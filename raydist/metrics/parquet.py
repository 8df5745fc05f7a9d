"""Metrics as Parquet files on storage, written by tasks."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.outcome.status import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import SegmentWriter, next_seq

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("task", pa.string(), nullable=False),  # worker/0
        pa.field("step", pa.int64(), nullable=False),
        pa.field("epoch", pa.int32()),
        pa.field("wall_time", pa.float64(), nullable=False),  # Unix time, seconds
        pa.field("scope", pa.string(), nullable=False),  # global or local
        pa.field("name", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
# A small file takes as long to read as thousands of rows.
GROWS_TO_BYTES = 1024 * 1024
ROW_BYTES = 100  # about what a row takes in memory; files are far smaller
# A run of hours leaves thousands of small files. Starting zstd for each of their columns takes longer
# than reading them, and they are no smaller with it.
_COMPRESSED_FROM_ROWS = 4096


class MetricsWriter:
    """Writes one task's metrics in one attempt, as files that are complete, of which the last one grows.

    Starts no thread: whoever owns it calls `tick()` about once a second, and `flush()` at the end.
    Safe to use from several threads; `append` never waits for storage.
    """

    def __init__(self, segments: SegmentWriter[MetricRow]) -> None:
        self._segments = segments

    @classmethod
    def open(
        cls,
        storage: RunStorage,
        *,
        task: TaskId,
        attempt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> MetricsWriter:
        """Continues after the files that this task wrote in this attempt already."""
        return cls(
            SegmentWriter(
                storage,
                segment_key=lambda seq: storage.metrics_segment(task, attempt=attempt, seq=seq),
                encode=lambda rows: file_of(pa.table(_columns(rows), schema=SCHEMA)),
                item_bytes=lambda _: ROW_BYTES,
                first_seq=next_seq(
                    storage, storage.metrics, prefix=storage.metrics_prefix(task, attempt=attempt)
                ),
                grows_to_bytes=GROWS_TO_BYTES,
                clock=clock,
            )
        )

    def append(self, rows: Iterable[MetricRow]) -> None:
        self._segments.append(*rows)

    def tick(self) -> None:
        """Writes a file once the oldest row that waits is 5 s old, or 4 MB wait."""
        self._segments.tick()

    def flush(self, *, is_hasty: bool = False) -> None:
        """Writes what waits; raises StorageError, and keeps it, where that cannot be done.

        Args:
          is_hasty: See `SegmentWriter.flush`.
        """
        self._segments.flush(is_hasty=is_hasty)

    def waiting(self) -> bytes:
        """Returns the rows that wait, for `take_over` of another process."""
        rows = [
            (
                *(row.run, row.attempt, str(row.task), int(row.step)),  # a user's own numbers may be NumPy's
                *(None if row.epoch is None else int(row.epoch), float(row.wall_time), row.scope.value),
                *(row.name, float(row.value)),
            )
            for row in self._segments.waiting()
        ]
        return json.dumps(rows).encode()

    def take_over(self, waiting: bytes) -> None:
        """Takes what waited in a process that has died."""
        self.append(
            MetricRow(
                run=run,
                attempt=attempt,
                task=TaskId.parse(task),
                step=step,
                epoch=epoch,
                wall_time=wall_time,
                scope=Scope(scope),
                name=name,
                value=value,
            )
            for run, attempt, task, step, epoch, wall_time, scope, name, value in json.loads(waiting)
        )


def file_of(table: pa.Table) -> bytes:
    """Returns the content of a file with these rows, whose columns are those of `SCHEMA`."""
    target = io.BytesIO()
    is_large = table.num_rows >= _COMPRESSED_FROM_ROWS
    pq.write_table(
        table,
        target,
        compression="zstd" if is_large else "none",
        write_page_checksum=True,
        write_statistics=False,
        store_schema=False,
    )
    return target.getvalue()


def _columns(rows: Sequence[MetricRow]) -> dict[str, list[Any]]:
    return {
        "run": [row.run for row in rows],
        "attempt": [row.attempt for row in rows],
        "task": [str(row.task) for row in rows],
        "step": [row.step for row in rows],
        "epoch": [row.epoch for row in rows],
        "wall_time": [row.wall_time for row in rows],
        "scope": [row.scope.value for row in rows],
        "name": [row.name for row in rows],
        "value": [float(row.value) for row in rows],
    }
