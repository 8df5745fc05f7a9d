"""Which tasks are slower than the others for a while, by their reported pace, and whose links are slow."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydist.outcome.result import Straggler, StragglerCause
from raydist.outcome.status import TaskLink, TaskPace, TaskState, TaskStatus
from raydist.spec.tasks import TaskId, TaskType
from raydist.stragglers.likely_cause import likely_cause, seconds_text
from raydist.stragglers.step_times import StepTimes, find_stragglers, step_times

# All tasks have to wait for so much of each step in collectives: else nobody gains by faster links.
MIN_COLLECTIVE_WAIT = 0.3
# A host is named whose every link is so many times worse than the median of the links between the others,
LIMIT = 3.0
# by so many seconds a round trip, or if so much of what is sent has to be sent again.
MIN_ROUND_TRIP_S = 0.005
MIN_RESENT = 0.01
# Of fewer segments a share says nothing.
_MIN_SENT = 100

REMEDY = "see what else uses the link, where the host is, and its cable, switch or virtual network"


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """The link between two hosts, as both ends have measured it.

    Attributes:
      resent: Share of the segments that had to be sent again, 0 to 1; None where few were sent at all.
    """

    round_trip_s: float
    resent: float | None = None


@dataclass(frozen=True, kw_only=True)
class SlowLinks:
    """Links that are slow.

    Attributes:
      hosts: The one host that all of them have in common; the two ends of the only link there is.
      reading: What shows it, as a part of a sentence.
    """

    hosts: frozenset[str]
    reading: str


def is_network_bound(times: Collection[StepTimes]) -> bool:
    """Returns whether all tasks wait in collectives: where one does not, the others wait for that one."""
    shares = [one.collective_wait for one in times]
    return bool(shares) and all(share is not None and share >= MIN_COLLECTIVE_WAIT for share in shares)


def host_links(
    begun: Mapping[Any, TaskPace], ended: Mapping[Any, TaskPace]
) -> dict[frozenset[str], HostLink]:
    """Returns the links between the hosts of tasks between two moments, by their two ends."""
    earlier = {
        (task, one.host): one for task, pace in begun.items() if pace.host is not None for one in pace.links
    }
    seen: defaultdict[frozenset[str], list[tuple[TaskLink, TaskLink | None]]] = defaultdict(list)
    for task, pace in ended.items():
        if pace.host is not None:
            for link in pace.links:
                seen[frozenset({pace.host, link.host})].append((link, earlier.get((task, link.host))))
    return {ends: _host_link(links) for ends, links in seen.items()}


def find_slow_links(links: Mapping[frozenset[str], HostLink]) -> list[SlowLinks]:
    """Returns the hosts whose links are slow.

    Of two hosts there is one link, which nothing can be compared with: it is slow by itself, and either end
    may be the cause. Of more, a host is not named for one slow link, as the others are connected by it, too.
    """
    hosts = frozenset(itertools.chain.from_iterable(links))
    if len(hosts) <= 2:
        return [
            SlowLinks(hosts=hosts, reading=f"{reading} between their two hosts, either of which may be why")
            for link in links.values()
            if (reading := _reading([link], _Sorted([], [])))
        ]
    by_host: defaultdict[str, list[HostLink]] = defaultdict(list)
    for ends, link in links.items():
        for host in ends:
            by_host[host].append(link)
    everyone = _Sorted.of(links.values())
    found = []
    for host, own in sorted(by_host.items()):
        if 2 <= len(own) < len(links) and (reading := _reading(own, everyone)):
            found.append(SlowLinks(hosts=frozenset({host}), reading=reading))
    return found


class _Sorted(NamedTuple):
    """What links have, ascending, so that the median of all but a few is found without looking at each."""

    round_trips_s: list[float]
    resent: list[float]

    @classmethod
    def of(cls, links: Iterable[HostLink]) -> _Sorted:
        known = list(links)
        return cls(
            sorted(one.round_trip_s for one in known),
            sorted(one.resent for one in known if one.resent is not None),
        )


def median_without(ordered: Sequence[float], own: Iterable[float]) -> float | None:
    """Returns the lower median of ascending values without some of them; None where none is left."""
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


def _host_link(seen: Sequence[tuple[TaskLink, TaskLink | None]]) -> HostLink:
    # A connection that was closed takes its part of a sum with it.
    sent = sum(max(0, link.sent - (before.sent if before else 0)) for link, before in seen)
    resent = sum(max(0, link.resent - (before.resent if before else 0)) for link, before in seen)
    return HostLink(
        round_trip_s=min(link.round_trip_s for link, _ in seen),
        resent=min(1.0, resent / sent) if sent >= _MIN_SENT else None,
    )


def _reading(own: Sequence[HostLink], everyone: _Sorted) -> str | None:
    """Returns what shows that all of a host's `own` links are slower than the others; else None.

    Args:
      everyone: Of all links, `own` included; empty where there are no others.
    """
    others = bool(everyone.round_trips_s)
    round_trip_s = min(one.round_trip_s for one in own)
    usual_s = 0.0
    if others:
        usual_s = median_without(everyone.round_trips_s, (one.round_trip_s for one in own)) or 0.0
    if round_trip_s >= LIMIT * usual_s and round_trip_s - usual_s >= MIN_ROUND_TRIP_S:
        beside = f", between the others {seconds_text(usual_s)}" if others else ""
        return f"a round trip takes {seconds_text(round_trip_s)}{beside}"
    own_resent = [one.resent for one in own if one.resent is not None]
    usual = median_without(everyone.resent, own_resent) if others else 0.0
    if len(own_resent) < min(2, len(own)) or usual is None:
        return None
    resent = min(own_resent)
    if resent >= MIN_RESENT and resent >= LIMIT * usual:
        beside = f", between the others {usual:.1%}" if others else ""
        return f"{resent:.1%} of the data has to be sent again{beside}"
    return None


# A task is named once it was slow in each of so many samples, of so many seconds each: an evaluation, a
# checkpoint or a pause of a machine falls into one of them, or into two.
SAMPLE_S = 10.0
NUM_SAMPLES = 3
# In a sample, of each task.
MIN_STEPS = 3

_Paces = Mapping[TaskId, TaskPace]


@dataclass(frozen=True, kw_only=True)
class StragglerWatch:
    """What is known of the tasks' pace. Immutable, so that another thread may read it.

    Attributes:
      stragglers: The tasks that were named in this attempt, in that order.
      noted: Each task and cause when it was named first, over all attempts.
      marks: The paces at the samples' ends, the oldest first, and before them the beginning.
      latest: The newest paces of the tasks that train.
    """

    sample_s: float = SAMPLE_S
    stragglers: tuple[Straggler, ...] = ()
    noted: tuple[Straggler, ...] = ()
    marks: tuple[_Paces, ...] = ()
    latest: _Paces = field(default_factory=dict)
    _incarnations: Mapping[TaskId, int] = field(default_factory=dict)  # of the tasks that train
    _paced: Mapping[TaskId, int] = field(default_factory=dict)  # of those that have a pace
    _short: tuple[TaskId, ...] = ()  # tasks whose part of the sample is too short yet

    def updated(self, statuses: Iterable[TaskStatus]) -> StragglerWatch:
        """Takes the newest status of each task that has sent one, or has another state than before."""
        incarnations, latest, paced = dict(self._incarnations), dict(self.latest), dict(self._paced)
        # Other tasks or processes, or the next `fit` under parameter servers: their sums start over.
        begins_anew = False
        paces: list[tuple[TaskId, TaskPace]] = []
        for one in statuses:
            task = one.task
            if one.state is not TaskState.RUNNING:
                incarnations.pop(task, None)
                latest.pop(task, None)
                begins_anew |= paced.pop(task, None) is not None
                continue
            incarnations[task] = one.incarnation
            if one.pace is not None:
                paces.append((task, one.pace))
            for index, pace in enumerate(one.worker_paces):
                paces.append((TaskId(task_type=TaskType.WORKER, index=index), pace))
        for task, pace in paces:
            incarnation = incarnations.get(task)
            if incarnation is None:
                continue  # a worker that does not train
            if paced.get(task) != incarnation or pace.steps < latest[task].steps:
                begins_anew, paced[task] = True, incarnation
            latest[task] = pace
        seen = dataclasses.replace(self, latest=latest, _incarnations=incarnations, _paced=paced)
        if begins_anew:
            return dataclasses.replace(seen, marks=(latest,), _short=tuple(latest))
        if not self.marks:
            return seen
        short = self._still_short(latest)
        if short:
            return dataclasses.replace(seen, _short=short)
        marks = (*self.marks, latest)[-NUM_SAMPLES - 1 :]
        return dataclasses.replace(seen, marks=marks, _short=tuple(latest))._judged()

    def restarted(self) -> StragglerWatch:
        """Returns the watch as it is at the beginning of the next attempt."""
        return StragglerWatch(sample_s=self.sample_s, noted=self.noted)

    def times(self) -> dict[TaskId, StepTimes]:
        """Returns what a step takes each task of late; of those that have completed one."""
        return _times(self.marks[0], self.latest) if self.marks else {}

    def _still_short(self, latest: _Paces) -> tuple[TaskId, ...]:
        """Returns tasks that the sample waits for: who has been long enough in it is not looked at again."""
        begun = self.marks[-1]
        for number, task in enumerate(self._short):
            pace, before = latest[task], begun[task]
            if pace.at_s - before.at_s < self.sample_s or pace.steps - before.steps < MIN_STEPS:
                return self._short[number:]
        return ()

    def _judged(self) -> StragglerWatch:
        if len(self.marks) <= NUM_SAMPLES:
            return self
        pairs = list(zip(self.marks[:-1], self.marks[1:], strict=True))
        slow = [set(_slow(*pair)) for pair in pairs]
        on_slow_links = [set(_on_slow_links(*pair)) for pair in pairs]

        def samples_of(straggler: Straggler) -> list[bool]:
            is_network = straggler.cause is StragglerCause.NETWORK
            return [straggler.task in sample for sample in (on_slow_links if is_network else slow)]

        found = {one.task: one for one in self.stragglers}
        noted = {(one.task, one.cause): one for one in self.noted}
        for straggler in _stragglers(self.marks[0], self.marks[-1]):
            if not all(samples_of(straggler)):
                continue
            known = found.get(straggler.task)
            if known is not None and known.cause is straggler.cause and not known.is_over:
                straggler = dataclasses.replace(straggler, message=known.message)
            found[straggler.task] = straggler
            noted.setdefault((straggler.task, straggler.cause), straggler)
        for task, known in found.items():
            if not any(samples_of(known)):
                found[task] = dataclasses.replace(known, is_over=True)
        return dataclasses.replace(self, stragglers=tuple(found.values()), noted=tuple(noted.values()))


def _stragglers(begun: _Paces, ended: _Paces) -> list[Straggler]:
    times, slow = _times(begun, ended), _slow(begun, ended)
    on_slow_links = _on_slow_links(begun, ended)
    return [
        *(_straggler(task, times_slower, times) for task, times_slower in slow.items()),
        *(
            _on_slow_link(task, links, on_slow_links, times)
            for task, links in on_slow_links.items()
            if task not in slow
        ),
    ]


def _times(begun: _Paces, ended: _Paces) -> dict[TaskId, StepTimes]:
    both = {task: step_times(begun[task], ended[task]) for task in begun if task in ended}
    return {task: one for task, one in both.items() if one is not None}


def _slow(begun: _Paces, ended: _Paces) -> dict[TaskId, float]:
    # The steps of a chief of parameter servers are those of all workers.
    times = {task: one for task, one in _times(begun, ended).items() if task.task_type is not TaskType.CHIEF}
    return find_stragglers(
        {task: one.own_s for task, one in times.items()}, {task: one.step_s for task, one in times.items()}
    )


def _on_slow_links(begun: _Paces, ended: _Paces) -> dict[TaskId, SlowLinks]:
    if not is_network_bound(_times(begun, ended).values()):
        return {}
    return {
        task: links
        for links in find_slow_links(host_links(begun, ended))
        for task, pace in ended.items()
        if pace.host in links.hosts
    }


def _straggler(task: TaskId, times_slower: float, times: Mapping[TaskId, StepTimes]) -> Straggler:
    slow = times[task]
    workers = {other: one for other, one in times.items() if other.task_type is not TaskType.CHIEF}
    found = likely_cause(slow, [one for other, one in workers.items() if other != task])
    message = (
        f"{task} is {times_slower:.1f} times slower than the median of the tasks: of each step it takes "
        f"{seconds_text(slow.own_s)} by itself, median {seconds_text(slow.own_s / times_slower)}. Likely "
        f"cause: {found.cause.value}: {found.reason}"
    )
    return Straggler(task=task, cause=found.cause, times_slower=times_slower, message=message)


def _on_slow_link(
    task: TaskId, links: SlowLinks, all_links: Mapping[TaskId, SlowLinks], times: Mapping[TaskId, StepTimes]
) -> Straggler:
    # One sentence for all tasks that the links belong to, which the run's notes have once.
    affected = [str(one) for one, found in all_links.items() if found == links]
    wait = min(one.collective_wait or 0.0 for one in times.values())
    median_s = statistics.median_low([one.own_s for one in times.values()])
    message = (
        f"the network of {' and '.join(affected)} is slow: {links.reading}; every task waits in collectives "
        f"for at least {wait:.0%} of each step. Likely cause: {StragglerCause.NETWORK.value}: {REMEDY}"
    )
    return Straggler(
        task=task,
        cause=StragglerCause.NETWORK,
        times_slower=times[task].own_s / median_s if median_s else 1.0,
        message=message,
    )
