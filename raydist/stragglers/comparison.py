"""Which tasks are slower than the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TypeVar

# A task that takes so many times the median of all is named.
LIMIT = 1.5
# And only if so much of its step is more than the median: where a step is mostly the exchange of gradients,
# nobody would gain by making the rest as fast as the others'.
MIN_SHARE = 0.1

Task = TypeVar("Task")


def find_stragglers(own_s: Mapping[Task, float], step_s: Mapping[Task, float]) -> dict[Task, float]:
    """Returns the tasks that are slower than the others, each with its own time over the median.

    Of an even number of tasks the median is the lower one of the two in the middle: of two tasks the slower
    one could otherwise be told only if it took three times as long as the other.

    Args:
      own_s: Seconds of a step that each task takes by itself, without waiting for the others in collectives.
      step_s: Seconds that the whole step takes it.
    """
    if len(own_s) < 2:
        return {}
    median = statistics.median_low(own_s.values())
    return {
        task: seconds / median
        for task, seconds in own_s.items()
        if median and seconds > LIMIT * median and seconds - median >= MIN_SHARE * step_s[task]
    }
