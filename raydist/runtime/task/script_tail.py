"""ScriptTail: what a script has printed since the last look, within a limit."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from raydist.outcome.printed import OutputSpan, Printed, PrintedLine
from raydist.spec.tasks import TaskId

_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 14
# A script that prints faster than it is shown is silent until it prints this part of the limit.
_QUIET_PART = 8
# The end of what such a script prints is shown again.
_LAST_LINES = 10
# How tqdm leaves the lower of two bars: one line up, and down again for the next state of it.
_UP_AND_DOWN = b"\x1b[A\n"


class ScriptTail:
    """Reads the spool of a task's process. Safe to use from several threads."""

    def __init__(self, spool_path: Path, task: TaskId) -> None:
        self._spool_path = spool_path
        self._task = task
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._rest = b""  # of a line that has not ended
        self._is_rest_redrawn = False
        self._is_flooded = False
        self._last: collections.deque[PrintedLine] = collections.deque(maxlen=_LAST_LINES)

    def read(self, span: OutputSpan, *, max_bytes: int) -> tuple[Printed, ...]:
        """Returns the lines that were added and have ended; the rest of a script that is over, too.

        The first answer begins with no lines at all, by which it is known that the script has begun.

        Args:
          max_bytes: How much of it is returned; other lines are counted.
        """
        with self._lock, contextlib.suppress(OSError):  # the spool is gone with its task
            return tuple(self._read(span, max_bytes))
        return ()

    def _read(self, span: OutputSpan, max_bytes: int) -> Iterator[Printed]:
        if self._offset is None:
            self._offset = span.start
            yield Printed(task=self._task)
        is_flooded = self._is_flooded
        kept: list[PrintedLine] = []
        num_bytes = num_left_out = 0
        for line in self._new_lines(span):
            num_bytes += len(line.text) + 1
            if num_bytes <= max_bytes and not is_flooded:
                kept.append(line)
                continue
            num_left_out += len(self._last) == _LAST_LINES  # the oldest, whose place this one takes
            self._last.append(line)
        is_quiet = span.is_over or (is_flooded and num_bytes <= max_bytes // _QUIET_PART)
        self._is_flooded = bool(self._last) and not is_quiet
        if kept or num_left_out:
            yield Printed(task=self._task, lines=tuple(kept), num_left_out=num_left_out)
        if self._last and is_quiet:
            yield Printed(task=self._task, lines=tuple(self._last))
            self._last.clear()

    def _new_lines(self, span: OutputSpan) -> Iterator[PrintedLine]:
        assert self._offset is not None
        with self._spool_path.open("rb") as spool:
            spool.seek(self._offset)
            while self._offset < span.end and (
                data := spool.read(min(_CHUNK_BYTES, span.end - self._offset))
            ):
                self._offset += len(data)
                *lines, rest = (self._rest + data).replace(_UP_AND_DOWN, b"").split(b"\n")
                for line in lines:
                    yield self._line(line)
                self._keep_rest(rest)
        if span.is_over and self._rest:
            rest, self._rest = self._rest, b""
            yield self._line(rest)

    def _line(self, line: bytes) -> PrintedLine:
        text, was_redrawn = _drawn(line)
        is_redrawn, self._is_rest_redrawn = was_redrawn or self._is_rest_redrawn, False
        return PrintedLine(text=text.decode("utf-8", errors="replace"), is_redrawn=is_redrawn)

    def _keep_rest(self, rest: bytes) -> None:
        """Keeps what a terminal shows of a line that a progress bar may write over for hours."""
        text, was_redrawn = _drawn(rest)
        self._is_rest_redrawn = self._is_rest_redrawn or was_redrawn
        self._rest = text + b"\r" if rest.endswith(b"\r") else text


def _drawn(line: bytes) -> tuple[bytes, bool]:
    """Returns what a terminal shows of a line, cut where it is very long, and whether it was written over."""
    parts = [part for part in line.split(b"\r") if part]
    text = parts[-1] if parts else b""
    if len(text) > _MAX_LINE_BYTES:
        text = text[:_MAX_LINE_BYTES] + " …".encode()
    return text, b"\r" in line.rstrip(b"\r")
