"""stdin, stdout and stderr as they are when one of them is closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from raydist.errors import RaydistError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = 0, 1, 2


class OutputError(RaydistError):
    """What was to be printed cannot be.

    Attributes:
      is_unread: Whether stdout is a pipe whose reader has all it wants, as `| head` has.
    """

    is_unread = False


class _Stream(io.FileIO):
    """A standard stream that fails once at most; what is written to it after that is dropped.

    So neither the error's own sentence nor Python's last flush fails over it.

    Attributes:
      failure: Why the stream cannot be written; None while it can be.
      is_raising: Whether the write that fails first raises `failure`.
    """

    def __init__(self, descriptor: int, *, is_raising: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None
        self.is_raising = is_raising

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failure is None:
            try:
                return self._write(data)
            except OSError as error:
                self.failure = error
                if self.is_raising:
                    raise output_error(error) from error
        return memoryview(data).nbytes

    def _write(self, data: ReadableBuffer) -> int:
        while (written := super().write(data)) is None:  # another process has made it non-blocking
            select.select([], [self], [])
        return written


_stdout: _Stream | None = None


def prepare() -> None:
    """Replaces this process's streams; called once, before anything is printed or opened."""
    global _stdout
    for descriptor in (STDIN, STDOUT, STDERR):
        _hold(descriptor)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    else:
        sys.stderr = _text_stream(sys.stderr, _Stream(STDERR, is_raising=False))
    if sys.stdout is not None:
        _stdout = _Stream(STDOUT, is_raising=True)
        sys.stdout = _text_stream(sys.stdout, _stdout)


def check_open() -> None:
    """Raises OutputError where this process was started with its stdout closed."""
    if sys.stdout is None:
        raise OutputError("stdout is closed, so nothing can be printed; send it to a file, or to /dev/null")


def tolerate_failures() -> None:
    """Lets what is printed from now on fail without an error: a run does not end with its screen."""
    if _stdout is not None:
        _stdout.is_raising = False


def check_written() -> None:
    """Raises OutputError where something that was printed so far has not got through."""
    sys.stdout.flush()
    if _stdout is not None and _stdout.failure is not None:
        raise output_error(_stdout.failure)


def output_error(error: OSError) -> OutputError:
    """Returns what to raise for an error of stdout."""
    found = OutputError(
        f"stdout cannot be written: {error.strerror or error}; what was printed is not whole, so send it to "
        "another file or pipe"
    )
    found.is_unread = error.errno == errno.EPIPE
    return found


def _hold(descriptor: int) -> None:
    """Opens a closed descriptor, so that no file gets its number, and with it what others print."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)


def _text_stream(before: TextIO, stream: _Stream) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=before.encoding,
        # A character that the terminal's encoding does not have is not a reason to stop.
        errors="backslashreplace" if before.errors == "strict" else before.errors,
        line_buffering=getattr(before, "line_buffering", False),
    )
