"""Which workers are slower than the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

# A task that takes so many times the median of all is named.
LIMIT = 1.5


def find_stragglers(step_s: Mapping[str, float]) -> dict[str, float]:
    """Returns the tasks that are slower than the others, each with its step time over the median.

    Under synchronous training every worker waits for the slowest, so that all take the same time; a
    straggler is seen by this only where workers do not wait for each other.

    Args:
      step_s: Seconds that a step takes each task.
    """
    if len(step_s) < 2:
        return {}
    median = statistics.median(step_s.values())
    return {task: seconds / median for task, seconds in step_s.items() if median and seconds > LIMIT * median}
