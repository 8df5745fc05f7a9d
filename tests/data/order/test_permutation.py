"""The permutation that the order of examples is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raydist.data.order.permutation import VERSION, key_of, permuted

SIZES = [*range(1, 140), 255, 256, 257, 1000, 4095, 4096, 4097, 65537, 100_003]


@pytest.mark.parametrize("key", [0, 1, -1, 12345, 2**64 - 1, 2**80, -(2**70)])
def test_every_element_comes_once(key: int) -> None:
    for size in SIZES:
        found = permuted(np.arange(size), size, key)
        assert found.dtype == np.int64
        assert np.array_equal(np.sort(found), np.arange(size)), size


@pytest.mark.parametrize("size", [1, 7, 64, 65, 5000])
def test_single_positions_are_those_of_the_whole(size: int) -> None:
    whole = permuted(np.arange(size), size, 99)
    positions = np.array([size - 1, 0, size // 2, 0])
    assert np.array_equal(permuted(positions, size, 99), whole[positions])
    assert permuted(np.zeros(0, np.int64), size, 99).shape == (0,)


def test_a_size_beyond_32_bits_costs_no_memory() -> None:
    size = 10**12 + 7
    positions = np.array([0, 1, 10**12, size - 1])
    found = permuted(positions, size, 3)
    assert found.tolist() == [785968848038, 607058369298, 8207652878, 242911006925]


def test_order_stays_what_it_is_from_version_to_version() -> None:
    """A run that is resumed by a later raydist continues with the same examples, or is refused.

    Whoever changes these numbers changes VERSION as well, which is in the fingerprint of batches.
    """
    assert VERSION == 2
    assert key_of(7, 3) == 7758145696617331093
    assert key_of(-1, 0, 2) == 11483448769221570793
    assert permuted(np.arange(10), 10, key_of(7, 3)).tolist() == [4, 8, 5, 7, 0, 1, 2, 3, 6, 9]
    assert permuted(np.arange(8), 1000, key_of(7, 3)).tolist() == [31, 469, 523, 964, 887, 198, 697, 444]


@pytest.mark.parametrize("size", [3, 5, 8, 16, 64, 65, 90])
def test_each_element_is_as_often_at_each_place(size: int) -> None:
    num_keys = 2000
    counts = np.zeros((size, size))
    for number in range(num_keys):
        counts[np.arange(size), permuted(np.arange(size), size, key_of(7, number))] += 1
    expected = num_keys / size
    # Chi-square over its degrees of freedom, which is 1 give or take sqrt(2 / degrees).
    degrees = (size - 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() / degrees < 1 + 5 * math.sqrt(2 / degrees)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_few_elements_occur(size: int) -> None:
    found = {tuple(permuted(np.arange(size), size, key_of(0, number))) for number in range(2000)}
    assert len(found) == math.factorial(size)


def test_neighbours_are_torn_apart() -> None:
    found = permuted(np.arange(10_000), 10_000, key_of(0, 0))
    assert (np.abs(np.diff(found)) == 1).sum() <= 12  # 2 expected
    assert abs(np.corrcoef(np.arange(10_000), found)[0, 1]) < 0.05
