"""Task logs: a growing local file goes to storage as segments, and is read back joined."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from raydist.spec.tasks import AnyTask
from raydist.storage.failures import storage_errors
from raydist.storage.filesystem import Storage
from raydist.storage.log_times import ArrivalTimes, encode_marks
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import (
    SEGMENT_GROWS_TO_BYTES,
    SEGMENT_MAX_AGE_S,
    SEGMENT_MAX_BYTES,
    segment_numbers,
)


class LogUploader:
    """Uploads what is new in a task's local log (its spool) as segments.

    How far it got is kept in a small file beside the spool, so that another process of the host
    can make a second uploader for the same spool and salvage what a killed task left behind. A
    segment's number is derived from that file: an upload that was cut off before the file was
    replaced is done again under the same name, so no byte is stored twice or lost. The last segment
    is written again, with what is new, until it is 256 KB large.

    Starts no thread: whoever owns it calls `tick()` about once a second. Safe to use from several
    threads, but not by two living processes at once.
    """

    def __init__(
        self,
        storage: RunStorage,
        *,
        task: AnyTask,
        attempt: int,
        incarnation: int = 0,
        spool_path: Path,
        times: ArrivalTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes whose log it is.

        Args:
          incarnation: How many processes the task has had in the attempt before this one.
          times: Notes when the spool grows; None for what is kept beside the spool.
        """
        self._storage = storage
        self._hasty_storage = storage.hasty()
        self._task = task
        self._attempt = attempt
        self._first_seq = storage.first_log_seq(incarnation)
        self._spool_path = spool_path
        self._times = times or ArrivalTimes(spool_path)
        self._clock = clock
        self._uploaded_at_s: float | None = None
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Uploads up to the last line end when the last upload was 5 s ago, or 4 MB are new.

        New bytes without any line end are uploaded as they are, so that a task which hangs in the
        middle of a line does not hide it.
        """
        with self._lock:
            now_s = self._clock()
            is_due = self._uploaded_at_s is None or now_s - self._uploaded_at_s >= SEGMENT_MAX_AGE_S
            if not is_due and self._num_new_bytes() < SEGMENT_MAX_BYTES:
                return
            while self._upload_segment(self._hasty_storage, is_final=False):
                self._uploaded_at_s = now_s
                if self._num_new_bytes() < SEGMENT_MAX_BYTES:
                    return

    def flush(self) -> None:
        """Uploads everything up to the end of the spool, an unfinished last line too."""
        with self._lock:
            while self._upload_segment(self._storage, is_final=True):
                self._uploaded_at_s = self._clock()

    def _num_new_bytes(self) -> int:
        with storage_errors("read", str(self._spool_path)):
            return (
                self._spool_path.stat().st_size - self._read_progress()[2] if self._spool_path.exists() else 0
            )

    def _upload_segment(self, storage: Storage, *, is_final: bool) -> bool:
        """Uploads the next segment; returns whether there was one."""
        with storage_errors("read", str(self._spool_path)):
            seq, offset, end = self._read_progress()
            new = _read_chunk(self._spool_path, end, is_final=is_final)
            chunk = _read_bytes(self._spool_path, offset, end - offset) + new
        if not new:
            return False
        place = {"attempt": self._attempt, "seq": seq}
        # Before the segment: whoever reads that finds its times.
        times = encode_marks(self._times.take(offset, offset + len(chunk)))
        storage.write_bytes(self._storage.log_times(self._task, **place), times)
        storage.write_bytes(self._storage.log_segment(self._task, **place), chunk)
        with storage_errors("write", str(self._progress_path)):
            if len(chunk) < SEGMENT_GROWS_TO_BYTES:
                self._write_progress(seq, offset, offset + len(chunk))
            else:
                self._write_progress(seq + 1, offset + len(chunk), offset + len(chunk))
        return True

    @property
    def _progress_path(self) -> Path:
        return self._spool_path.with_name(f"{self._spool_path.name}.uploaded")

    def _read_progress(self) -> tuple[int, int, int]:
        """Returns the number of the last segment, the offset of its first byte, and where it ends so far."""
        if not self._progress_path.exists():
            return self._first_seq, 0, 0
        progress = json.loads(self._progress_path.read_text())
        # Of an earlier raydist, whose segments did not grow: it has only where the next one begins.
        return progress["seq"], progress["offset"], progress.get("end", progress["offset"])

    def _write_progress(self, seq: int, offset: int, end: int) -> None:
        aside = self._progress_path.with_name(f"{self._progress_path.name}.tmp")
        aside.write_text(json.dumps({"seq": seq, "offset": offset, "end": end}))
        os.replace(aside, self._progress_path)


def read_log(storage: RunStorage, *, task: AnyTask, attempt: int, tail_bytes: int | None = None) -> str:
    """Returns a task's log, or its whole lines within the last `tail_bytes` (None: all of it)."""
    numbers = segment_numbers(storage, storage.task_logs(task, attempt=attempt))
    parts: list[bytes] = []
    while numbers and (tail_bytes is None or sum(map(len, parts)) <= tail_bytes):
        parts.append(storage.read_bytes(storage.log_segment(task, attempt=attempt, seq=numbers.pop())))
    found = b"".join(reversed(parts))
    whole = found if tail_bytes is None else _last_lines(found, tail_bytes)
    return whole.decode("utf-8", errors="replace")


def list_log_tasks(storage: RunStorage) -> list[tuple[int, AnyTask]]:
    """Returns (attempt, task) of every log that is stored, by attempt, then by task."""
    attempts = sorted(int(name) for name in storage.list_names(storage.logs) if name.isdecimal())
    return [
        (attempt, task)
        for attempt in attempts
        for task in sorted(
            _tasks_of(storage, attempt), key=lambda task: (str(task).partition("/")[0], task.index)
        )
    ]


def _tasks_of(storage: RunStorage, attempt: int) -> list[AnyTask]:
    names = storage.list_names(f"{storage.logs}/{attempt}")
    return [task for task in map(storage.parse_task, names) if task is not None]


def _read_chunk(path: Path, offset: int, *, is_final: bool) -> bytes:
    """Returns new bytes, cut at a line end where there is one."""
    chunk = _read_bytes(path, offset, SEGMENT_MAX_BYTES)
    reaches_end = is_final and len(chunk) < SEGMENT_MAX_BYTES
    cut = 0 if reaches_end else chunk.rfind(b"\n") + 1
    return chunk[:cut] if cut else chunk


def _read_bytes(path: Path, offset: int, num_bytes: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as spool:
        spool.seek(offset)
        return spool.read(num_bytes)


def _last_lines(data: bytes, num_bytes: int) -> bytes:
    """Returns the last `num_bytes` from a line start on, or just those bytes when they hold no line start."""
    if len(data) <= num_bytes:
        return data
    start = len(data) - num_bytes
    line_start = data.find(b"\n", start - 1) + 1
    return data[line_start if 0 < line_start < len(data) else start :]
