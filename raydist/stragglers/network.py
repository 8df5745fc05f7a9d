"""Whose links are slower than those of the others, from what the tasks' hosts have measured on them."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.spec.status import TaskLink, TaskPace
from raydist.stragglers.likely_cause import seconds_text
from raydist.stragglers.step_times import StepTimes

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
            if (reading := _reading([link], []))
        ]
    found = []
    for host in sorted(hosts):
        own = [link for ends, link in links.items() if host in ends]
        others = [link for ends, link in links.items() if host not in ends]
        if len(own) >= 2 and others and (reading := _reading(own, others)):
            found.append(SlowLinks(hosts=frozenset({host}), reading=reading))
    return found


def _host_link(seen: Sequence[tuple[TaskLink, TaskLink | None]]) -> HostLink:
    # A connection that was closed takes its part of a sum with it.
    sent = sum(max(0, link.sent - (before.sent if before else 0)) for link, before in seen)
    resent = sum(max(0, link.resent - (before.resent if before else 0)) for link, before in seen)
    return HostLink(
        round_trip_s=min(link.round_trip_s for link, _ in seen),
        resent=min(1.0, resent / sent) if sent >= _MIN_SENT else None,
    )


def _reading(own: Sequence[HostLink], others: Sequence[HostLink]) -> str | None:
    """Returns what shows that all of a host's `own` links are slow beside the `others`; else None."""
    round_trip_s = min(one.round_trip_s for one in own)
    usual_s = statistics.median_low([one.round_trip_s for one in others]) if others else 0.0
    if round_trip_s >= LIMIT * usual_s and round_trip_s - usual_s >= MIN_ROUND_TRIP_S:
        beside = f", between the others {seconds_text(usual_s)}" if others else ""
        return f"a round trip takes {seconds_text(round_trip_s)}{beside}"
    own_resent = [one.resent for one in own if one.resent is not None]
    others_resent = [one.resent for one in others if one.resent is not None]
    if len(own_resent) < min(2, len(own)) or (others and not others_resent):
        return None
    resent = min(own_resent)
    usual = statistics.median_low(others_resent) if others else 0.0
    if resent >= MIN_RESENT and resent >= LIMIT * usual:
        beside = f", between the others {usual:.1%}" if others else ""
        return f"{resent:.1%} of the data has to be sent again{beside}"
    return None
