"""Which rows of a batch each worker has, by its share."""

from __future__ import annotations

import itertools

import pytest

from raydist.data.order.steps import cut, rows_of_worker

SHARES = [(3, 1), (1, 3), (2, 1, 2), (1, 1000), (7, 5, 3, 2), (1,) * 5]


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_workers_have_neighbouring_rows_in_proportion_and_never_fewer_of_a_larger_batch(
    shares: tuple[int, ...],
) -> None:
    before = [0] * len(shares)
    for num_rows in range(200):
        found = [rows_of_worker(num_rows, worker, shares) for worker in range(len(shares))]
        sizes = [size for _, size in found]
        assert [first for first, _ in found] == list(itertools.accumulate([0, *sizes]))[:-1]
        assert sum(sizes) == num_rows
        # As a pipeline batches the worker's own rows.
        assert all(size - old in (0, 1) for size, old in zip(sizes, before, strict=True))
        assert all(
            abs(size - num_rows * share / sum(shares)) < len(shares)
            for size, share in zip(sizes, shares, strict=True)
        )
        before = sizes


def test_equal_shares_are_equal_parts() -> None:
    for num_rows, num_workers in itertools.product(range(40), range(1, 9)):
        for worker in range(num_workers):
            first, end = cut(num_rows, worker, num_workers)
            assert rows_of_worker(num_rows, worker, (1,) * num_workers) == (first, end - first)


def test_parts_of_a_worker_are_equal() -> None:
    assert [cut(21, part, 4, (3, 1)) for part in range(4)] == [(0, 8), (8, 16), (16, 19), (19, 21)]
