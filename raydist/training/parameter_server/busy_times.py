"""How long each worker takes for its steps, as the coordinator sees it. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_REPORT_INTERVAL_S = 2.0

Report = Callable[[Sequence[tuple[float, int]]], None]


class BusyTimes:
    """Adds up the seconds that each worker was busy, and its steps.

    A worker goes from one closure to the next, as there is always one that waits. So a closure took the time
    since the worker completed the one before.
    """

    def __init__(
        self, num_workers: int, *, report: Report, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Takes what gets (seconds, steps) of each worker since the beginning, at most every 2 s."""
        self._report = report
        self._clock = clock
        self._sums = [(0.0, 0)] * num_workers
        self._since_s = [0.0] * num_workers
        self._reported_at_s = float("-inf")

    def begin(self) -> None:
        """Says that workers had nothing to do before now."""
        self._since_s = [self._clock()] * len(self._sums)

    def completed(self, worker: int, num_steps: int) -> None:
        """Notes that a worker has completed a closure of `num_steps` steps."""
        now_s = self._clock()
        seconds, steps = self._sums[worker]
        self._sums[worker] = seconds + now_s - self._since_s[worker], steps + num_steps
        self._since_s[worker] = now_s
        if now_s - self._reported_at_s >= _REPORT_INTERVAL_S:
            self._reported_at_s = now_s
            self._report(tuple(self._sums))
