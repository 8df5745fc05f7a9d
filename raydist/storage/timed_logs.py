"""Reads task logs line by line with the time of each line, and merges them."""

from __future__ import annotations

import heapq
import io
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from raydist.spec.tasks import AnyTask
from raydist.storage.log_times import Marks, arrival_of, decode_marks
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import segment_numbers

_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a task's log, without its end.

    Attributes:
      at_s: Unix time of its arrival in the log, to within a second; None in a run of an older raydist.
    """

    at_s: float | None
    attempt: int
    task: AnyTask
    text: str


class TimedLogReader:
    """Reads one task's log from storage, and then only what was added since."""

    def __init__(self, storage: RunStorage, *, task: AnyTask, attempt: int) -> None:
        self.task = task
        self.attempt = attempt
        self._storage = storage
        self._seq = 0
        self._num_read = 0  # bytes of segment `_seq`: a salvage may write the last one again, longer
        self._ahead: dict[int, bytes] = {}  # segments that `skip_to` has read
        self._unfinished = b""
        self._unfinished_at_s: float | None = None

    def skip_to(self, *, num_lines: int | None, since_s: float | None, keep: Callable[[str], bool]) -> None:
        """Makes the first read begin near the end of the log.

        Args:
          num_lines: How many of the last lines have to be read, of those that `keep` keeps; None for all.
          since_s: Unix time of the first line that has to be read; None for all.
        """
        if num_lines is None and since_s is None:
            return
        num_kept = 0
        for seq in reversed(self._numbers()):
            self._seq = seq
            if since_s is not None and (marks := self._marks(seq)) and marks[0][0] < since_s:
                return
            if num_lines is not None:
                self._ahead[seq] = self._storage.read_bytes(self._segment(seq))
                num_kept += sum(map(keep, _decode(self._ahead[seq]).split("\n")))
                if num_kept > num_lines:  # the first one of a segment may have begun in the one before
                    return

    def read_new(self, *, is_last: bool) -> list[LogLine]:
        """Returns the lines that were added since the last call.

        A line without an end is returned once nothing is added to it.

        Args:
          is_last: Whether nothing is read after this call.
        """
        lines: list[LogLine] = []
        is_grown = False
        for seq in [number for number in self._numbers() if number >= self._seq]:
            skipped, data = self._read(seq)
            is_grown = is_grown or bool(data)
            lines += self._lines(data, self._marks(seq) if data else [], skipped)
        if self._unfinished and (is_last or not is_grown):
            lines.append(self._line(self._unfinished_at_s, self._unfinished))
            self._unfinished = b""
        return lines

    def _lines(self, data: bytes, marks: Marks, offset: int) -> Iterable[LogLine]:
        """Yields the whole lines of a segment's bytes, which begin at `offset` in it."""
        for part in io.BytesIO(data):  # ends at `\n` alone: progress bars have a `\r` within their lines
            if not self._unfinished:
                self._unfinished_at_s = arrival_of(marks, offset) or self._unfinished_at_s
            self._unfinished += part
            offset += len(part)
            if part.endswith(b"\n"):
                yield self._line(self._unfinished_at_s, self._unfinished[:-1])
                self._unfinished = b""

    def _line(self, at_s: float | None, text: bytes) -> LogLine:
        return LogLine(at_s=at_s, attempt=self.attempt, task=self.task, text=_decode(text))

    def _read(self, seq: int) -> tuple[int, bytes]:
        """Returns the bytes of a segment that are new, and how many came before."""
        num_read = self._num_read if seq == self._seq else 0
        if num_read and self._storage.size(self._segment(seq)) <= num_read:
            return num_read, b""
        data = self._ahead.pop(seq, None)
        if data is None:
            data = self._storage.read_bytes(self._segment(seq))
        self._seq, self._num_read = seq, len(data)
        return num_read, data[num_read:]

    def _marks(self, seq: int) -> Marks:
        key = self._storage.log_times(self.task, attempt=self.attempt, seq=seq)
        return decode_marks(self._storage.read_bytes(key)) if self._storage.exists(key) else []

    def _numbers(self) -> list[int]:
        folder = self._storage.task_logs(self.task, attempt=self.attempt)
        return segment_numbers(self._storage, folder)

    def _segment(self, seq: int) -> str:
        return self._storage.log_segment(self.task, attempt=self.attempt, seq=seq)


def read_merged(readers: Iterable[TimedLogReader], *, is_last: bool) -> list[LogLine]:
    """Returns what is new in several logs in the order of its arrival; lines without a time come first."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-logs") as threads:
        parts = list(threads.map(lambda reader: reader.read_new(is_last=is_last), readers))
    return list(heapq.merge(*parts, key=lambda line: line.at_s or 0.0))


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
