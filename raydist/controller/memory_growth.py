"""Tasks whose memory grows until their host has none left: found before that kills them."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """The peaks of one process's memory over time.

    Attributes:
      growth: Bytes a second, as `growth_of` returns it.
    """

    incarnation: int
    host: str
    every_s: float = SAMPLE_S
    samples: Samples = ()
    growth: float | None = None

    def is_fresh(self, status: TaskStatus, now_s: float) -> bool:
        """Whether the process of `status` is this one, trains, and needs no sample yet."""
        return (
            now_s - self.samples[-1][0] < self.every_s
            and status.state is TaskState.RUNNING
            and status.incarnation == self.incarnation
        )

    def sampled(self, peak_bytes: int, now_s: float) -> _Memory:
        samples, every_s = (*self.samples, (now_s, peak_bytes)), self.every_s
        if len(samples) > _MAX_SAMPLES:
            samples, every_s = samples[::2], 2 * every_s
        return dataclasses.replace(self, every_s=every_s, samples=samples, growth=growth_of(samples))


@dataclass(frozen=True, kw_only=True)
class MemoryWatch:
    """How the memory of an attempt's tasks grows. Immutable.

    Attributes:
      memories: Of each task that trains, of its newest process.
      peaks: The peaks of these now, in bytes.
      noted: The tasks that were named, over all attempts.
      notes: A sentence for each of them.
    """

    memories: Mapping[TaskId, _Memory] = field(default_factory=dict)
    peaks: Mapping[TaskId, int] = field(default_factory=dict)
    noted: frozenset[TaskId] = frozenset()
    notes: tuple[str, ...] = ()

    def updated(
        self,
        statuses: Iterable[TaskStatus],
        *,
        now_s: float,
        left_s: float | None,
        reserved_bytes: Callable[[TaskId], int],
    ) -> MemoryWatch:
        """Takes in the newest status of each task that has sent one, or has another state than before.

        Args:
          now_s: A steady clock.
          left_s: How long the run will continue; None while that is unknown, so that nobody is named.
          reserved_bytes: Returns what a task has reserved; 0 where it has not.
        """
        memories, peaks, growing = dict(self.memories), dict(self.peaks), []
        for one in statuses:
            if one.peak_memory_bytes is not None:
                peaks[one.task] = one.peak_memory_bytes
            known = memories.get(one.task)
            if known is not None and known.is_fresh(one, now_s):
                continue
            memories.pop(one.task, None)
            if one.state is TaskState.RUNNING and one.peak_memory_bytes:
                memories[one.task] = memory = _sampled(known, one, now_s)
                if memory.growth is not None and one.task not in self.noted:
                    growing.append(one)
        watch = dataclasses.replace(self, memories=memories, peaks=peaks)
        if left_s is None or not growing:
            return watch
        by_host: dict[str, list[tuple[_Memory, int]]] = {}
        for task, memory in memories.items():
            by_host.setdefault(memory.host, []).append((memory, peaks[task]))
        for status in growing:
            limits = _limits(status, memories[status.task], by_host[status.host], reserved_bytes(status.task))
            limit = min(limits, key=lambda one: one.reached_in_s, default=None)
            if limit is not None and limit.reached_in_s < left_s:
                growth = memories[status.task].growth or 0.0
                sentence = _sentence(status.task, limit, growth=growth, left_s=left_s)
                watch = dataclasses.replace(
                    watch, noted=watch.noted | {status.task}, notes=(*watch.notes, sentence)
                )
        return watch

    def restarted(self) -> MemoryWatch:
        """Returns the watch as it is at the beginning of the next attempt."""
        return dataclasses.replace(self, memories={}, peaks={})


def _sampled(known: _Memory | None, status: TaskStatus, now_s: float) -> _Memory:
    if known is None or known.incarnation != status.incarnation:
        known = _Memory(incarnation=status.incarnation, host=status.host)
    return known.sampled(status.peak_memory_bytes or 0, now_s)


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
    status: TaskStatus, memory: _Memory, beside: Sequence[tuple[_Memory, int]], reserved_bytes: int
) -> Iterator[_Limit]:
    """Yields the limits of a task that grows: its host's, shared by the tasks there, and its reservation."""
    if status.memory_limit_bytes is not None:
        room = status.memory_limit_bytes - sum(peak for _, peak in beside)
        growth = sum(one.growth or 0.0 for one, _ in beside)
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
