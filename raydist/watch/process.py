"""The watcher process beside a driver that has no supervisor, such as a script that calls raydist.run."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from raydist.errors import StorageError
from raydist.spec.text import escaped
from raydist.watch.watcher import DriverFacts

# How late the death of a driver is noticed whose other children still hold the pipe.
_POLL_S = 1.0
# The watcher ends even if clearing up fails or hangs, for example at the storage.
_CLEAR_UP_S = 120


def main() -> None:
    """Waits for the driver's end, and clears up where that was a death."""
    if os.fork():  # Ray kills the children of a worker that ends, but not theirs
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the driver's to obey
        signal.signal(number, signal.SIG_IGN)
    facts = _wait_for_end(driver=int(sys.argv[1]))
    if facts.run is None:
        return
    signal.alarm(_CLEAR_UP_S)
    from raydist.watch.aftermath import describe_death, settle

    try:
        result = settle(facts.run, how=describe_death(None))
    except StorageError as error:
        _say(f"{describe_death(None)}; its last record is not written: {error}")
        return
    if result is not None and result.error is not None:
        _say(f"run {result.run} ({result.storage}): {result.error.message}")


def _say(sentence: str) -> None:
    print(f"raydist: {escaped(sentence)}", file=sys.stderr)


def _is_gone(process: int) -> bool:
    """Whether a process has ended, also if nobody has reaped it; its number is not used again within 1 s."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


def _wait_for_end(*, driver: int) -> DriverFacts:
    """Returns what the driver had sent when its run was over, or when it died."""
    received = b""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while not DriverFacts.of(received).is_over:
        is_gone = _is_gone(driver)  # before reading: what it sent last is in the pipe by then
        if poller.poll(0 if is_gone else _POLL_S * 1000):
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            received += chunk
        elif is_gone:
            break
    return DriverFacts.of(received)


if __name__ == "__main__":
    main()
