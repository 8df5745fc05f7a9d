"""Leaves out a line that Ray's core worker prints for each Ray Data job of actors that may be restarted."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

# Of each actor whose constructor has arguments that Ray Data has put into the object store. They stay there
# as long as the job runs (core_worker.cc; ray#53727).
_LINE = b"has constructor arguments in the object store and max_restarts > 0"
# At a time; the line comes in one write.
_MOST_BYTES = 64 * 1024


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Passes on all else that is written to this process's stderr inside the block.

    What a process writes that is started inside the block is passed on to its end, after the block too.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    copying = threading.Thread(target=_copy, args=(reading, kept), daemon=True)
    copying.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        copying.join(timeout=1)


def _copy(reading: int, kept: int) -> None:
    while chunk := os.read(reading, _MOST_BYTES):
        rest = b"".join(one for one in chunk.splitlines(keepends=True) if _LINE not in one)
        while rest:
            rest = rest[os.write(kept, rest) :]
    os.close(reading)
    os.close(kept)
