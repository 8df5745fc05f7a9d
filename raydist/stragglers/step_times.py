"""What a step of one task consists of, and which tasks are slower than the others."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from raydist.outcome.status import TaskPace


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Means per step of one task over some seconds; all but `other_cpus` in seconds.

    Attributes:
      input_wait_s: None where it is not measured, as are `collective_wait_s`, `run_delay_s` and `other_cpus`.
      other_cpus: Share of the host's CPU time that other processes took, 0 to 1.
    """

    step_s: float
    input_wait_s: float | None = None
    collective_wait_s: float | None = None
    cpu_s: float = 0.0
    run_delay_s: float | None = None
    other_cpus: float | None = None

    @property
    def own_s(self) -> float:
        """The time that the task itself takes: not the wait in collectives, which is for the others."""
        return max(0.0, self.step_s - (self.collective_wait_s or 0.0))

    @property
    def input_wait(self) -> float | None:
        """The share of the time spent waiting for data, 0 to 1."""
        return _share(self.input_wait_s, self.step_s)

    @property
    def collective_wait(self) -> float | None:
        """The share of the time spent waiting in collectives, 0 to 1."""
        return _share(self.collective_wait_s, self.step_s)


def step_times(earlier: TaskPace, later: TaskPace) -> StepTimes | None:
    """Returns what a step took between two moments; None where no step was completed in between."""
    num_steps, seconds = later.steps - earlier.steps, later.at_s - earlier.at_s
    if num_steps < 1 or seconds <= 0:
        return None

    def per_step(before: float | None, after: float | None) -> float | None:
        # A thread that has ended takes its part of a sum with it.
        return None if before is None or after is None else max(0.0, after - before) / num_steps

    other_s = per_step(earlier.other_cpu_s, later.other_cpu_s)
    step_s = seconds / num_steps
    return StepTimes(
        step_s=step_s,
        input_wait_s=per_step(earlier.input_wait_s, later.input_wait_s),
        collective_wait_s=per_step(earlier.collective_wait_s, later.collective_wait_s),
        cpu_s=per_step(earlier.cpu_s, later.cpu_s) or 0.0,
        run_delay_s=per_step(earlier.run_delay_s, later.run_delay_s),
        other_cpus=None if other_s is None else min(1.0, other_s / (step_s * later.num_cpus)),
    )


def _share(part_s: float | None, whole_s: float) -> float | None:
    return None if part_s is None or whole_s <= 0 else min(1.0, part_s / whole_s)


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


def median_without(ordered: Sequence[float], own: Iterable[float]) -> float | None:
    """Returns the lower median of ascending values without some of them; None where none is left.

    It does not look at each of them.
    """
    places: list[int] = []
    for value in sorted(own):
        place = bisect.bisect_left(ordered, value)
        places.append(max(place, places[-1] + 1) if places else place)
    left = len(ordered) - len(places)
    middle = (left - 1) // 2
    for place in places:
        if place <= middle:
            middle += 1
    return ordered[middle] if left else None
