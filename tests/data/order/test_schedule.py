"""The order of a mixture's sources: their shares, their counts, and where an epoch ends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from raydist.data.order.schedule import Schedule, int_weights

CASES = [
    ((10, 10), (7, 3)),
    ((100, 3), (7, 3)),
    ((1, 50), (1, 1)),
    ((5, 6, 7, 8), (1, 2, 3, 4)),
    ((9,), (1,)),
    ((40, 2, 33), (1, 1000, 3)),
]


@pytest.mark.parametrize(("sizes", "weights"), CASES)
@pytest.mark.parametrize("repeats", [False, True])
def test_each_position_has_a_source_and_its_next_example(
    sizes: tuple[int, ...], weights: tuple[int, ...], repeats: bool
) -> None:
    schedule = Schedule(sizes, weights, repeats)
    sources, ranks = schedule.locate(np.arange(schedule.num_examples + 1))
    following, sources = sources[-1], sources[:-1]
    seen = [0] * len(sizes)
    for number, (source, rank) in enumerate(zip(sources.tolist(), ranks.tolist(), strict=False)):
        assert rank == seen[source]
        seen[source] += 1
        for weight, count in zip(weights, seen, strict=True):
            assert abs(count - (number + 1) * weight / sum(weights)) < len(sizes)
    ends = [count >= size for count, size in zip(seen, sizes, strict=True)]
    assert all(ends) if repeats else any(ends)
    # An example less, or one more, and it would be another end.
    ending = sources[-1] if repeats else following
    assert seen[ending] == sizes[ending]
    assert repeats or all(count <= size for count, size in zip(seen, sizes, strict=True))
    assert schedule.num_passes == tuple(-(-count // size) for count, size in zip(seen, sizes, strict=True))


def test_positions_far_away_are_found_without_what_comes_before() -> None:
    schedule = Schedule((2**40, 2**40), (7, 3), True)
    assert schedule.num_examples == -(-(2 * 2**40 - 1) * 5 // 3)
    [source], [rank] = schedule.locate(np.array([10**12]))
    assert (source, rank) == (0, 7 * 10**11)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], (7, 3)),
        ([2, 4], (1, 2)),
        ([1], (1,)),
        ([1e-9, 1.0], (1, 4194303)),
        ([np.float32(0.5), 0.5], (1, 1)),
    ],
)
def test_weights_keep_their_ratio(weights: list[float], expected: tuple[int, ...]) -> None:
    assert int_weights(weights) == expected


def test_thirds_are_as_near_as_small_ints_allow() -> None:
    found = int_weights([1 / 3, 2 / 3])
    assert found[1] / sum(found) == pytest.approx(2 / 3, abs=1e-6)
    assert sum(found) <= 2**22


def test_order_does_not_depend_on_how_many_positions_are_asked_for() -> None:
    schedule = Schedule((20, 30), (2, 3), False)
    whole = list(zip(*schedule.locate(np.arange(50)), strict=True))
    single = list(itertools.chain(*(zip(*schedule.locate(np.array([n])), strict=True) for n in range(50))))
    assert whole == single
