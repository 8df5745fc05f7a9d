"""When the bytes of a task's log arrived, so that the logs of several tasks can be merged by time.

A task writes its log straight to a file, TensorFlow's C++ too, so no line can be stamped as it is written.
The length of the file, looked at a few times a second, says when each byte came.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from raydist.storage.limits import parse_json

Marks: TypeAlias = Sequence[tuple[float, int]]
"""(Unix time, number of bytes that were there by then), both ascending."""


class ArrivalTimes:
    """The times of one spool. Kept in a file beside it too, for whoever salvages the spool of a killed task.

    Safe to use from several threads.
    """

    def __init__(self, spool_path: Path) -> None:
        """Takes over the times that are kept beside the spool already."""
        self._spool_path = spool_path
        self._path = spool_path.with_name(f"{spool_path.name}.times")
        self._lock = threading.Lock()
        self._marks: list[tuple[float, int]] = []
        with contextlib.suppress(OSError, ValueError):
            for line in self._path.read_text().splitlines():
                at_s, size = line.split()
                self._marks.append((float(at_s), int(size)))

    def note(self) -> None:
        """Notes how long the spool is now; called a few times a second. OSError: the disk is full."""
        with self._lock:
            size = self._spool_path.stat().st_size if self._spool_path.exists() else 0
            if size > (self._marks[-1][1] if self._marks else 0):
                mark = (round(time.time(), 3), size)
                with self._path.open("a") as file:
                    file.write(f"{mark[0]} {mark[1]}\n")
                self._marks.append(mark)

    def take(self, start: int, end: int) -> Marks:
        """Returns the marks of the bytes from `start` to `end`, counted from `start`; forgets earlier ones.

        What came after the last look has the time of the spool's last change.
        """
        with self._lock:
            first = bisect.bisect_right(self._marks, start, key=lambda mark: mark[1])
            self._marks = self._marks[first:]
            marks = []
            for at_s, size in self._marks:
                marks.append((at_s, min(size, end) - start))
                if size >= end:
                    return marks
        with contextlib.suppress(OSError):
            marks.append((round(self._spool_path.stat().st_mtime, 3), end - start))
        return marks


def encode_marks(marks: Marks) -> bytes:
    return json.dumps({"marks": marks}, separators=(",", ":")).encode()


def decode_marks(content: bytes) -> Marks:
    """Returns no marks where `content` is not what was written: only the order of lines depends on them."""
    try:
        return [(float(at_s), int(size)) for at_s, size in parse_json(content)["marks"]]
    except (ValueError, KeyError, TypeError, OverflowError):
        return []


def arrival_of(marks: Marks, offset: int) -> float | None:
    """Returns when the byte at `offset` arrived; None without a mark."""
    number = bisect.bisect_right(marks, offset, key=lambda mark: mark[1])
    if number < len(marks):
        return marks[number][0]
    return marks[-1][0] if marks else None
