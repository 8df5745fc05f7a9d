"""The sum over replicas has the same bits, however the replicas are divided among workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from raydist.training.cluster.replica_tree import of_replicas, replicas_of, roots_of, summed

MOST_REPLICAS = 40
COUNTS = range(1, MOST_REPLICAS + 1)
EVEN = [
    (
        num_replicas,
        [replicas_of(worker, num_workers=num_workers, num_replicas=num_replicas) for worker in ids],
    )
    for num_replicas in COUNTS
    for num_workers in range(1, num_replicas + 1)
    for ids in [range(num_workers)]
]


def any_partitions(seed: int, *, count: int) -> Iterator[tuple[int, list[range]]]:
    """Yields numbers of replicas, each with a division among workers at random places."""
    numbers = random.Random(seed)
    for _ in range(count):
        num_replicas = numbers.randint(1, MOST_REPLICAS)
        num_cuts = numbers.randint(0, num_replicas - 1)
        cuts = [0, *sorted(numbers.sample(range(1, num_replicas), num_cuts)), num_replicas]
        yield num_replicas, [range(*ends) for ends in itertools.pairwise(cuts)]


PARTITIONS = [*EVEN, *any_partitions(0, count=500)]


def values_of(num_replicas: int) -> list[np.ndarray]:
    """Returns a vector for each replica, whose numbers are of very different sizes."""
    rng = np.random.default_rng(num_replicas)
    scales = 10.0 ** rng.integers(-4, 5, size=(num_replicas, 8))
    return list((rng.normal(size=(num_replicas, 8)) * scales).astype("float32"))


def sum_over_workers(values: list[np.ndarray], workers: list[range]) -> np.ndarray:
    """Adds as the workers do: each one its roots, and then all of these."""
    num_replicas, known = len(values), {}
    for own in workers:
        leaves = of_replicas(own, values[own.start : own.stop])
        roots = roots_of(own, num_replicas=num_replicas)
        known.update({root: summed(root, leaves, np.add) for root in roots})
    return summed(range(num_replicas), known, np.add)


def test_each_worker_has_as_many_replicas_as_the_others_or_one_more() -> None:
    for num_replicas, workers in EVEN:
        assert [replica for own in workers for replica in own] == list(range(num_replicas))
        assert {len(own) - num_replicas // len(workers) for own in workers} <= {0, 1}


def test_sum_has_the_bits_of_one_worker_for_each_division_of_the_replicas() -> None:
    values = {count: values_of(count) for count in COUNTS}
    expected = {count: sum_over_workers(values[count], [range(count)]).tobytes() for count in COUNTS}
    for num_replicas, workers in PARTITIONS:
        assert sum_over_workers(values[num_replicas], workers).tobytes() == expected[num_replicas], workers


def test_sum_is_right_and_one_after_the_other_would_have_other_bits() -> None:
    num_different = 0
    for count in COUNTS:
        values = values_of(count)
        found = sum_over_workers(values, [range(count)])
        assert found.dtype == np.float32
        sizes = np.sum(np.abs(values, dtype="float64"), axis=0)
        np.testing.assert_array_less(np.abs(found - np.sum(values, axis=0, dtype="float64")), 1e-6 * sizes)
        in_order = values[0]
        for value in values[1:]:
            in_order = in_order + value
        num_different += in_order.tobytes() != found.tobytes()
    assert num_different > 30  # so equal bits above say something


def test_roots_hold_each_replica_of_the_worker_once_in_order() -> None:
    for num_replicas, workers in PARTITIONS:
        for own in workers:
            roots = roots_of(own, num_replicas=num_replicas)
            assert [replica for root in roots for replica in root] == list(own)


def test_roots_are_few() -> None:
    for num_replicas, workers in PARTITIONS:
        depth = (num_replicas - 1).bit_length()
        for own in workers:
            num_roots = len(roots_of(own, num_replicas=num_replicas))
            # Of each level but the first at most one at each end; at the tree's edges just at one end.
            is_at_an_edge = own.start == 0 or own.stop == num_replicas
            assert num_roots <= max(1, depth if is_at_an_edge else 2 * (depth - 1)), (num_replicas, own)


@pytest.mark.parametrize("num_replicas", [1, 5, 8, 40])
def test_one_worker_sends_one_sum(num_replicas: int) -> None:
    assert roots_of(range(num_replicas), num_replicas=num_replicas) == [range(num_replicas)]
