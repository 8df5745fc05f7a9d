"""Which tasks are slower than the others for a while, by their reported pace, and whose links are slow."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raydist.outcome.result import Straggler, StragglerCause
from raydist.outcome.status import TaskLink, TaskPace, TaskState, TaskStatus
from raydist.spec.tasks import TaskId, TaskType
from raydist.stragglers.likely_cause import Peers, likely_cause, seconds_text
from raydist.stragglers.step_times import StepTimes, find_stragglers, median_without, step_times

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
    seen: defaultdict[frozenset[str], list[tuple[TaskLink, TaskLink | None]]] = defaultdict(list)
    for task, pace in ended.items():
        if pace.host is not None:
            before = begun.get(task)
            earlier = {} if before is None or before.host is None else {one.host: one for one in before.links}
            for link in pace.links:
                seen[frozenset({pace.host, link.host})].append((link, earlier.get(link.host)))
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


class StragglerWatch:
    """What is known of the tasks' pace.

    Attributes:
      stragglers: The tasks that were named in this attempt, in that order.
      noted: Each task and cause when it was named first, over all attempts.
      marks: The paces at the samples' ends, the oldest first, and before them the beginning. The last one
        has only those that have changed since, so that no end of a sample copies them all.
      latest: The newest paces of the tasks that train.
    """

    def __init__(self, *, sample_s: float = SAMPLE_S, noted: tuple[Straggler, ...] = ()) -> None:
        self.sample_s = sample_s
        self.stragglers: tuple[Straggler, ...] = ()
        self.noted = noted
        self.marks: deque[dict[TaskId, TaskPace]] = deque([{}], maxlen=NUM_SAMPLES + 1)
        self.latest: dict[TaskId, TaskPace] = {}
        self._incarnations: dict[TaskId, int] = {}  # of the tasks that train
        self._paced: dict[TaskId, int] = {}  # of those that have a pace
        self._long: set[TaskId] = set()  # the tasks whose part of the sample is long enough
        self._samples: deque[_Sample] = deque(maxlen=NUM_SAMPLES)

    def take(self, statuses: Iterable[TaskStatus]) -> None:
        """Takes the newest status of each task that has sent one, or has another state than before."""
        # Other tasks or processes, or the next `fit` under parameter servers: their sums start over.
        begins_anew = False
        of_workers: list[tuple[TaskId, TaskPace]] = []
        for one in statuses:
            task = one.task
            if one.state is not TaskState.RUNNING:
                self._incarnations.pop(task, None)
                self.latest.pop(task, None)
                begins_anew |= self._paced.pop(task, None) is not None
                continue
            self._incarnations[task] = one.incarnation
            if one.pace is not None:
                begins_anew |= not self._continues(task, one.incarnation, one.pace)
            for index, pace in enumerate(one.worker_paces):
                of_workers.append((TaskId(task_type=TaskType.WORKER, index=index), pace))
        for task, pace in of_workers:
            incarnation = self._incarnations.get(task)
            if incarnation is not None:  # else it does not train
                begins_anew |= not self._continues(task, incarnation, pace)
        if begins_anew:
            self.marks.clear()
            self._samples.clear()
        elif self.latest and len(self._long) == len(self.latest):
            self._samples.append(_Sample.between(self.marks[-1], self.latest))
        else:
            return
        self.marks.append({})
        self._long.clear()
        if len(self._samples) == NUM_SAMPLES:
            self._judge()

    def restarted(self) -> StragglerWatch:
        """Returns the watch of the next attempt."""
        return StragglerWatch(sample_s=self.sample_s, noted=self.noted)

    def times(self) -> dict[TaskId, StepTimes]:
        """Returns what a step takes each task of late; of those that have completed one."""
        return _times(self.marks[0], self.latest)

    def steady_times(self) -> dict[TaskId, StepTimes]:
        """Returns what `times` does, once it is that of NUM_SAMPLES samples; else nothing."""
        return self.times() if len(self._samples) == NUM_SAMPLES else {}

    def _continues(self, task: TaskId, incarnation: int, pace: TaskPace) -> bool:
        """Takes in a task's pace; returns whether it adds to what the sample has of the task."""
        before = self.latest.get(task)
        self.latest[task] = pace
        if before is None or self._paced[task] != incarnation or pace.steps < before.steps:
            self._paced[task] = incarnation
            return False
        begun = self.marks[-1].setdefault(task, before)
        if pace.at_s - begun.at_s >= self.sample_s and pace.steps - begun.steps >= MIN_STEPS:
            self._long.add(task)
        return True

    def _judge(self) -> None:
        whole = _Sample.between(self.marks[0], self.latest)

        def samples_of(task: TaskId, cause: StragglerCause) -> list[bool]:
            is_network = cause is StragglerCause.NETWORK
            return [task in (one.on_slow_links if is_network else one.slow) for one in self._samples]

        found = {one.task: one for one in self.stragglers}
        noted = {(one.task, one.cause): one for one in self.noted}
        for straggler in whole.stragglers():
            if not all(samples_of(straggler.task, straggler.cause)):
                continue
            known = found.get(straggler.task)
            if known is not None and known.cause is straggler.cause and not known.is_over:
                straggler = dataclasses.replace(straggler, message=known.message)
            found[straggler.task] = straggler
            noted.setdefault((straggler.task, straggler.cause), straggler)
        for task, known in found.items():
            if not any(samples_of(task, known.cause)):
                found[task] = dataclasses.replace(known, is_over=True)
        self.stragglers, self.noted = tuple(found.values()), tuple(noted.values())


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """What steps took between two moments.

    Attributes:
      slow: The tasks that were slower than the others, with their own time over the median.
      on_slow_links: Those whose hosts' links are slow, if all tasks wait for the network.
    """

    times: Mapping[TaskId, StepTimes]
    slow: Mapping[TaskId, float]
    on_slow_links: Mapping[TaskId, SlowLinks]

    @classmethod
    def between(cls, begun: _Paces, ended: _Paces) -> _Sample:
        times = _times(begun, ended)
        links = host_links(begun, ended) if is_network_bound(times.values()) else {}
        by_host = {host: slow for slow in find_slow_links(links) for host in slow.hosts}
        on_slow_links = {
            task: by_host[pace.host] for task, pace in ended.items() if pace.host and pace.host in by_host
        }
        return cls(times=times, slow=_slow(times), on_slow_links=on_slow_links)

    def stragglers(self) -> Iterator[Straggler]:
        peers = Peers(_compared(self.times).values())
        for task, times_slower in self.slow.items():
            yield _straggler(task, self.times[task], peers, times_slower=times_slower)
        yield from self._on_slow_links()

    def _on_slow_links(self) -> Iterator[Straggler]:
        if not self.on_slow_links:
            return
        # One sentence for all tasks that the links belong to, which the run's notes have once.
        affected: defaultdict[SlowLinks, list[str]] = defaultdict(list)
        for task, links in self.on_slow_links.items():
            affected[links].append(str(task))
        wait = min(one.collective_wait or 0.0 for one in self.times.values())
        median_s = statistics.median_low([one.own_s for one in self.times.values()])
        messages = {
            links: f"the network of {' and '.join(names)} is slow: {links.reading}; every task waits in "
            f"collectives for at least {wait:.0%} of each step. Likely cause: "
            f"{StragglerCause.NETWORK.value}: {REMEDY}"
            for links, names in affected.items()
        }
        for task, links in self.on_slow_links.items():
            if task not in self.slow:
                yield Straggler(
                    task=task,
                    cause=StragglerCause.NETWORK,
                    times_slower=self.times[task].own_s / median_s if median_s else 1.0,
                    message=messages[links],
                )


def _times(begun: _Paces, ended: _Paces) -> dict[TaskId, StepTimes]:
    both = {task: step_times(begun[task], pace) for task, pace in ended.items() if task in begun}
    return {task: one for task, one in both.items() if one is not None}


def _compared(times: Mapping[TaskId, StepTimes]) -> dict[TaskId, StepTimes]:
    # The steps of a chief of parameter servers are those of all workers.
    return {task: one for task, one in times.items() if task.task_type is not TaskType.CHIEF}


def _slow(times: Mapping[TaskId, StepTimes]) -> dict[TaskId, float]:
    compared = _compared(times)
    return find_stragglers(
        {task: one.own_s for task, one in compared.items()},
        {task: one.step_s for task, one in compared.items()},
    )


def _straggler(task: TaskId, slow: StepTimes, peers: Peers, *, times_slower: float) -> Straggler:
    found = likely_cause(slow, peers)
    message = (
        f"{task} is {times_slower:.1f} times slower than the median of the tasks: of each step it takes "
        f"{seconds_text(slow.own_s)} by itself, median {seconds_text(slow.own_s / times_slower)}. Likely "
        f"cause: {found.cause.value}: {found.reason}"
    )
    return Straggler(task=task, cause=found.cause, times_slower=times_slower, message=message)
