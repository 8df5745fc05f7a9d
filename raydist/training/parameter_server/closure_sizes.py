"""How many steps go into the next closure, and how long workers take for theirs. No TensorFlow."""

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


# `fit` of a small model made 1.2 to 1.5 times the steps of a step a closure with 0.2 s, 2.2 to 2.3 with this.
TARGET_CLOSURE_S = 0.5
MOST_STEPS = 1000
# How long closures are watched before the next size is chosen; the first look is a short one.
_LOOK_S = 0.2
_FIRST_LOOK_S = 0.05
# Unrolling pays where a step takes about as long as the messages of a turn of the loop.
UNROLL = 10
_SHORT_STEP_S = 0.05
# What unrolling saves of a step as short as this, about, and of a longer one as much; tracing has to be
# earned back by that. (On 2 cores with 3 workers, 2 ps and a small model 12 ms became 5.)
_SAVED = 0.5
_MESSAGES_S = 0.012


class ClosureSizes:
    """Chooses sizes by the time that steps take.

    A closure is `turns` turns of a loop with `unroll` steps each.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        total: int,
        fixed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes how many steps there will be, and what the user chose.

        Args:
          total: Steps in all.
          fixed: Steps of a closure, if the user says so.
        """
        self.num_workers = num_workers
        self._total_left = total
        self._fixed = fixed
        self._clock = clock
        self._unrolls = {1}  # how many steps a turn may have, of the closures that there are
        self._steps = float(fixed or 1)
        self._began_at_s: float | None = None
        self._completed = 0
        self._step_s: float | None = None

    def begin(self) -> None:
        """Says that workers had nothing to do before now."""
        self._began_at_s, self._completed = None, 0

    def next(self, left: int) -> tuple[int, int]:
        """Returns (turns, unroll) of the next closure, together at most `left` steps.

        Towards the end closures get smaller, so that the workers end at about the same time.
        """
        if self._began_at_s is None:
            self._began_at_s = self._clock()
        even = -(-left // (2 * self.num_workers)) if self._fixed is None else left
        turns = [one for one in self._unrolls if one <= left]
        # A turn of short steps takes as long as a few single ones.
        is_short = self._step_s is not None and self._step_s <= _MESSAGES_S
        least = max(turns) if is_short else 1
        count = min(max(int(self._steps), max(turns)), max(even, least), left)
        unroll = max(one for one in self._unrolls if one <= count)
        return count // unroll, unroll

    def completed(self, count: int) -> None:
        """Notes that a closure of `count` steps is done."""
        self._total_left -= count
        self._completed += count
        now = self._clock()
        look_s = _FIRST_LOOK_S if self._step_s is None else _LOOK_S
        if self._began_at_s is None or now - self._began_at_s < look_s:
            return
        # All workers together did them, each in turn.
        self._step_s = (now - self._began_at_s) * self.num_workers / self._completed
        self._began_at_s, self._completed = now, 0
        if self._fixed is None:
            # The first steps are slow, and a first guess may be far off: no more than four times as many.
            self._steps = max(1.0, min(TARGET_CLOSURE_S / self._step_s, 4 * self._steps, MOST_STEPS))

    def wanted_unroll(self, *, trace_s: float) -> int:
        """Returns how many steps a turn should have; 1 where more would not pay."""
        now = max(self._unrolls)
        if now > 1 or self._step_s is None or self._step_s > _SHORT_STEP_S:
            return now
        unroll = min(UNROLL, self._fixed or UNROLL)
        saved_s = _SAVED * self._total_left * min(self._step_s, _MESSAGES_S) / self.num_workers
        return unroll if trace_s * unroll < saved_s else now

    def unrolled(self, unroll: int) -> None:
        """Says that closures with `unroll` steps a turn exist. Tracing them is not part of a step's time."""
        if unroll not in self._unrolls:
            self._unrolls.add(unroll)
            self.begin()
