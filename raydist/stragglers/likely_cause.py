"""Why a task is slower than the others, as far as its numbers tell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raydist.outcome.result import StragglerCause
from raydist.stragglers.step_times import LIMIT, StepTimes, median_without

# A cause has to explain so much of the time that a task takes more than the others.
_EXPLAINS = 0.5
# Where the delay of threads is not known: what others take of the host's CPU time.
_BUSY_HOST = 0.5

_REMEDIES = {
    StragglerCause.HOST: "see what else runs there, or give each task more CPUs with --cpus",
    StragglerCause.DATA: (
        "balance the files or rows of the workers, cache what does not change, or make its maps cheaper"
    ),
    StragglerCause.COMPUTE: "look for code that only this task runs, larger examples, or a slower CPU",
    StragglerCause.UNKNOWN: (
        "a sleep, a lock, a slow file or a slower device looks like this; `raydist stacks` shows where it is"
    ),
}


@dataclass(frozen=True, kw_only=True)
class LikelyCause:
    """A cause, and what it is read from and what to do about it, as the end of a sentence."""

    cause: StragglerCause
    reason: str


_Part = Callable[[StepTimes], float | None]
_own_s: _Part = operator.attrgetter("own_s")
_cpu_s: _Part = operator.attrgetter("cpu_s")
_delay_s: _Part = operator.attrgetter("run_delay_s")
_input_s: _Part = operator.attrgetter("input_wait_s")


class Peers:
    """What steps take the tasks that are compared: each part of it is sorted once, for all that are slow."""

    def __init__(self, times: Iterable[StepTimes]) -> None:
        self._times = tuple(times)
        self._sorted: dict[_Part, list[float]] = {}

    def median_besides(self, one: StepTimes, part: _Part) -> float:
        """Returns the lower median of that part of the others' steps; 0 where there are none."""
        if part not in self._sorted:
            self._sorted[part] = sorted(part(each) or 0.0 for each in self._times)
        return median_without(self._sorted[part], [part(one) or 0.0]) or 0.0


def likely_cause(slow: StepTimes, peers: Peers) -> LikelyCause:
    """Returns why `slow`, which is one of `peers`, takes longer than the others."""
    cause = _cause(slow, peers)
    return LikelyCause(cause=cause, reason=f"{_reading(cause, slow, peers)}; {_REMEDIES[cause]}")


def seconds_text(seconds: float) -> str:
    """Returns `1.2 s` or `45 ms`."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _cause(slow: StepTimes, peers: Peers) -> StragglerCause:
    def more(part: _Part) -> float:
        return (part(slow) or 0.0) - peers.median_besides(slow, part)

    explained_s = _EXPLAINS * more(_own_s)
    cpu_s, delay_s = more(_cpu_s), more(_delay_s)
    # On a busy host each second of CPU time brings its delay with it, so that both belong to the task's own
    # computation where its CPU time is longer, too.
    has_more_work = slow.cpu_s > LIMIT * peers.median_besides(slow, _cpu_s) or cpu_s > delay_s
    is_computing = has_more_work and cpu_s + max(0.0, delay_s) >= explained_s
    if slow.run_delay_s is None:
        is_delayed = (slow.other_cpus or 0.0) >= _BUSY_HOST
    else:
        is_delayed = delay_s >= explained_s
    # Before the data: another process makes a task's input pipeline as slow as its steps.
    if is_delayed and not is_computing:
        return StragglerCause.HOST
    if more(_input_s) >= explained_s:
        return StragglerCause.DATA
    return StragglerCause.COMPUTE if is_computing else StragglerCause.UNKNOWN


def _reading(cause: StragglerCause, slow: StepTimes, peers: Peers) -> str:
    def compared(part: _Part) -> str:
        median_s = seconds_text(peers.median_besides(slow, part))
        return f"{seconds_text(part(slow) or 0.0)} of each step (median of the others {median_s})"

    match cause:
        case StragglerCause.HOST if slow.run_delay_s is None:
            return f"other processes take {slow.other_cpus or 0.0:.0%} of its host's CPU time"
        case StragglerCause.HOST:
            return f"its threads are ready and get no CPU for {compared(_delay_s)}"
        case StragglerCause.DATA:
            return f"it waits for its input {compared(_input_s)}"
        case StragglerCause.COMPUTE:
            return f"its CPU time is {compared(_cpu_s)}"
        case _ if not slow.cpu_s:  # a process that trains takes some
            return "neither its CPU time nor its input is measured under parameter_server"
        case _:
            return "it does not wait for its input, takes no more CPU time, and nothing keeps it from a CPU"
