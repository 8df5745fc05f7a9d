from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from typing import Any

import pytest

from raydist.outcome.status import TaskLink, TaskPace
from raydist.stragglers.step_times import StepTimes, median_without
from raydist.stragglers.watch import HostLink, find_slow_links, host_links, is_network_bound

FAST = 0.0002
Links = Mapping[str, float]  # by their two ends, such as `AB`


def named(links: Mapping[str, HostLink]) -> list[str]:
    found = find_slow_links({frozenset(ends): link for ends, link in links.items()})
    return ["".join(sorted(one.hosts)) for one in found]


def by_round_trip(seconds: Links) -> dict[str, HostLink]:
    return {ends: HostLink(round_trip_s=one) for ends, one in seconds.items()}


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({}, []),
        ({"AB": FAST}, []),
        ({"AB": 0.0049}, []),
        ({"AB": 0.005}, ["AB"]),
        ({"AB": FAST, "AC": FAST, "BC": FAST}, []),
        ({"AB": 0.04, "AC": 0.04, "BC": FAST}, ["A"]),
        ({"AB": FAST, "AC": 0.04, "BC": 0.05}, ["C"]),
        ({"AB": 0.04, "AC": FAST, "BC": FAST}, []),
        ({"AB": 0.004, "AC": 0.004, "BC": FAST}, []),
        ({"AB": 0.04, "AC": 0.04, "BC": 0.015}, []),
        ({"AB": 0.045, "AC": 0.046, "BC": 0.015}, ["A"]),
        ({"AB": FAST, "BC": 0.04, "CD": 0.04, "AD": FAST}, ["C"]),
        ({"AB": FAST, "CD": FAST, "AC": 0.04, "AD": 0.04, "BC": 0.04, "BD": 0.04}, []),
        ({"AB": 0.04, "BC": FAST}, []),
        ({"AB": 0.04, "AC": 0.04}, []),
    ],
    ids=[
        *("no link", "two hosts", "two hosts below the limit", "two hosts on a slow link", "all equal"),
        *("first", "last", "one slow link of three", "5 ms too little", "less than 3 times", "3 times"),
        *("ring", "two far places", "single connection", "nothing to compare with"),
    ],
)
def test_host_is_named_if_each_of_its_links_is_slower_than_those_between_the_others(
    seconds: Links, slow: list[str]
) -> None:
    assert named(by_round_trip(seconds)) == slow


@pytest.mark.parametrize(
    ("resent", "slow"),
    [
        ({"AB": 0.009}, []),
        ({"AB": 0.01}, ["AB"]),
        ({"AB": None}, []),
        ({"AB": 0.05, "AC": 0.04, "BC": 0.0}, ["A"]),
        ({"AB": 0.05, "AC": 0.04, "BC": 0.02}, []),
        ({"AB": 0.05, "AC": None, "BC": 0.0}, []),
        ({"AB": 0.05, "AC": 0.05, "BC": None}, []),
        ({"AB": 0.05, "AD": 0.05, "BC": 0.0, "CD": 0.0, "AC": None, "BD": None}, ["A"]),
    ],
    ids=[
        *("two hosts below the limit", "two hosts", "too little sent", "first", "all lose much"),
        *("one busy link", "others are idle", "ring"),
    ],
)
def test_host_is_named_if_much_is_sent_again_on_each_of_its_links(
    resent: Mapping[str, float | None], slow: list[str]
) -> None:
    links = {ends: HostLink(round_trip_s=FAST, resent=one) for ends, one in resent.items()}
    assert named(links) == slow


class CountedLinks(dict[frozenset[str], HostLink]):
    """Links that count how often one is looked at."""

    num_looks = 0

    def items(self) -> Any:
        for item in super().items():
            self.num_looks += 1
            yield item


@pytest.mark.parametrize("round_trip_s", [FAST, 0.05], ids=["near", "far"])
def test_each_link_is_looked_at_as_often_in_any_cluster(round_trip_s: float) -> None:
    def looks(num_hosts: int) -> float:
        ring = [frozenset({f"h{host}", f"h{(host + 1) % num_hosts}"}) for host in range(num_hosts)]
        links = CountedLinks(dict.fromkeys(ring, HostLink(round_trip_s=round_trip_s, resent=0.0)))
        assert find_slow_links(links) == []
        return links.num_looks / num_hosts

    assert looks(500) == looks(1000) <= 2


def test_median_of_the_others_is_that_of_the_list_without_the_own() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        values = [float(draw.randint(0, 6)) for _ in range(draw.randint(1, 12))]
        own = draw.sample(values, draw.randint(0, len(values)))
        others = list(values)
        for one in own:
            others.remove(one)
        expected = statistics.median_low(others) if others else None
        assert median_without(sorted(values), own) == expected


def test_reading_has_the_figures() -> None:
    def readings(links: Mapping[str, HostLink]) -> list[str]:
        return [one.reading for one in find_slow_links({frozenset(ends): one for ends, one in links.items()})]

    assert readings(by_round_trip({"AB": 0.041, "AC": 0.04, "BC": FAST})) == [
        "a round trip takes 40 ms, between the others 0.2 ms"
    ]
    assert readings(by_round_trip({"AB": 0.04})) == [
        "a round trip takes 40 ms between their two hosts, either of which may be why"
    ]
    assert readings({"AB": HostLink(round_trip_s=FAST, resent=0.031)}) == [
        "3.1% of the data has to be sent again between their two hosts, either of which may be why"
    ]


def pace(host: str | None, **links: tuple[float, int, int]) -> TaskPace:
    told = [
        TaskLink(host=peer, round_trip_s=round_trip_s, sent=sent, resent=resent)
        for peer, (round_trip_s, sent, resent) in links.items()
    ]
    return TaskPace(at_s=0.0, steps=0, host=host, links=tuple(told))


def test_link_is_what_its_two_ends_have_measured_between_two_moments() -> None:
    begun = {0: pace("A", B=(0.2, 1000, 50)), 1: pace("B", A=(0.2, 10, 0))}
    ended = {0: pace("A", B=(0.3, 1150, 60)), 1: pace("B", A=(0.1, 60, 0), C=(0.4, 99, 9))}
    assert host_links(begun, ended) == {
        frozenset("AB"): HostLink(round_trip_s=0.1, resent=0.05),
        frozenset("BC"): HostLink(round_trip_s=0.4, resent=None),
    }


def test_connections_that_were_closed_take_nothing_away_from_others() -> None:
    begun = {0: pace("A", B=(0.2, 9000, 500)), 1: pace("B", A=(0.2, 0, 0))}
    ended = {0: pace("A", B=(0.2, 7, 0)), 1: pace("B", A=(0.2, 200, 10))}
    assert host_links(begun, ended) == {frozenset("AB"): HostLink(round_trip_s=0.2, resent=0.05)}


def test_tasks_that_measure_no_links_have_none() -> None:
    paces = {0: pace(None), 1: pace(None)}
    assert host_links(paces, paces) == {}


@pytest.mark.parametrize(
    ("shares", "is_bound"),
    [([0.3, 0.9], True), ([0.29, 0.9], False), ([None, 0.9], False), ([], False)],
    ids=["all wait", "others wait for one", "not measured", "nobody"],
)
def test_network_matters_where_all_tasks_wait_in_collectives(
    shares: list[float | None], is_bound: bool
) -> None:
    assert is_network_bound([StepTimes(step_s=1.0, collective_wait_s=one) for one in shares]) is is_bound
