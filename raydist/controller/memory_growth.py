"""Tasks whose memory grows until their host has none left: found before that kills them."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from raydist.outcome.status import TaskState, TaskStatus
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import TaskId

SAMPLE_S = 30.0
NUM_SAMPLES = 24
# Then each second one goes, and samples are taken half as often, so that a run of days fits.
_MAX_SAMPLES = 2 * NUM_SAMPLES
# Growth that ends has less in its second half; a leak has at least this part of what the first half had.
_STEADY = 0.6

# Seconds of a steady clock, and bytes.
Samples = tuple[tuple[float, int], ...]


@dataclass(kw_only=True)
class _Memory:
    """The peaks of one process's memory over time.

    Attributes:
      peak_bytes: The newest.
      growth: Bytes a second, as `growth_of` returns it.
    """

    incarnation: int
    host: str
    peak_bytes: int = 0
    every_s: float = SAMPLE_S
    samples: Samples = ()
    growth: float | None = None

    def sample(self, now_s: float) -> bool:
        """Takes a sample if one is due; returns whether it was."""
        if self.samples and now_s - self.samples[-1][0] < self.every_s:
            return False
        self.samples = (*self.samples, (now_s, self.peak_bytes))
        if len(self.samples) > _MAX_SAMPLES:
            self.samples, self.every_s = self.samples[::2], 2 * self.every_s
        self.growth = growth_of(self.samples)
        return True


class MemoryWatch:
    """How the memory of an attempt's tasks grows.

    Attributes:
      memories: Of each task that trains, of its newest process.
      notes: A sentence for each task that was named, over all attempts.
    """

    def __init__(self) -> None:
        self.memories: dict[TaskId, _Memory] = {}
        self.notes: list[str] = []
        self._on_host: defaultdict[str, dict[TaskId, _Memory]] = defaultdict(dict)
        self._noted: set[TaskId] = set()

    def take(
        self,
        statuses: Iterable[TaskStatus],
        *,
        now_s: float,
        left_s: float | None,
        reserved_bytes: Callable[[TaskId], int],
    ) -> None:
        """Takes in the newest status of each task that has sent one, or has another state than before.

        Args:
          now_s: A steady clock.
          left_s: How long the run will continue; None while that is unknown, so that nobody is named.
          reserved_bytes: Returns what a task has reserved; 0 where it has not.
        """
        growing = [one for one in statuses if self._take_one(one, now_s)]
        if left_s is None:
            return
        for status in growing:
            memory, beside = self.memories[status.task], self._on_host[status.host].values()
            limits = _limits(status, memory, beside, reserved_bytes(status.task))
            limit = min(limits, key=lambda one: one.reached_in_s, default=None)
            if limit is not None and limit.reached_in_s < left_s:
                self._noted.add(status.task)
                self.notes.append(_sentence(status.task, limit, growth=memory.growth or 0.0, left_s=left_s))

    def restart(self) -> None:
        """Begins with the next attempt."""
        self.memories.clear()
        self._on_host.clear()

    def _take_one(self, status: TaskStatus, now_s: float) -> bool:
        """Takes in a status; returns whether it shows that its task grows, which was not named yet."""
        task, known = status.task, self.memories.get(status.task)
        is_measured = status.state is TaskState.RUNNING and bool(status.peak_memory_bytes)
        if known is not None and not (is_measured and known.incarnation == status.incarnation):
            del self.memories[task], self._on_host[known.host][task]
            known = None
        if not is_measured:
            return False
        if known is None:
            known = _Memory(incarnation=status.incarnation, host=status.host)
            self.memories[task] = self._on_host[status.host][task] = known
        known.peak_bytes = status.peak_memory_bytes or 0
        return known.sample(now_s) and known.growth is not None and task not in self._noted


def growth_of(samples: Samples) -> float | None:
    """Returns the bytes a second by which peaks grow steadily; None where they do not, or it is too early.

    The first third is left out. The slope is the median of those between all pairs of samples (Theil-Sen), so
    that a single large batch does not count.
    """
    if len(samples) < NUM_SAMPLES:
        return None
    later = samples[len(samples) // 3 :]
    half = len(later) // 2
    first, second = _slope(later[: half + 1]), _slope(later[half:])
    if min(first, second) <= 0 or second < _STEADY * first:
        return None
    return _slope(later)


def _slope(samples: Samples) -> float:
    pairs = itertools.combinations(samples, 2)
    return statistics.median(
        (after - before) / (end_s - begin_s) for (begin_s, before), (end_s, after) in pairs
    )


@dataclass(frozen=True, kw_only=True)
class _Limit:
    """What a task's memory grows towards, and in how many seconds it gets there."""

    name: str
    reached_in_s: float


def _limits(
    status: TaskStatus, memory: _Memory, beside: Collection[_Memory], reserved_bytes: int
) -> Iterator[_Limit]:
    """Yields the limits of a task that grows: its host's, shared by the tasks there, and its reservation."""
    if status.memory_limit_bytes is not None:
        room = status.memory_limit_bytes - sum(one.peak_bytes for one in beside)
        growth = sum(one.growth or 0.0 for one in beside)
        shared = f", which {len(beside)} tasks share," if len(beside) > 1 else ""
        name = f"the host's {write_bytes(status.memory_limit_bytes)}{shared}"
        yield _Limit(name=name, reached_in_s=max(0.0, room) / growth)
    room, growth = reserved_bytes - (status.peak_memory_bytes or 0), memory.growth or 0.0
    if room > 0:  # who has taken more from the beginning is not limited by it
        name = f"the {write_bytes(reserved_bytes)} that it reserves"
        yield _Limit(name=name, reached_in_s=room / growth)


def _sentence(task: TaskId, limit: _Limit, *, growth: float, left_s: float) -> str:
    return (
        f"the memory of {task} grows by {write_bytes(round(growth * 3600))} an hour and would reach "
        f"{limit.name} in about {_rough(limit.reached_in_s)}, before the run's end in about {_rough(left_s)}"
    )


def _rough(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(1, round(seconds / 60))} min"
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f}".removesuffix(".0") + " h"
