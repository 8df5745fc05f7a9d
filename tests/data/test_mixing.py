"""How well data that are sorted by class are mixed, in numbers.

The groups of all windows together are what a batch is drawn from. If they hold K groups of one class each,
the share of a class in a batch of B has the variance p (1 - p) (1 / B + 1 / K), where a full shuffle's has
p (1 - p) / B: the shares spread sqrt(1 + B / K) times as much.
"""

from __future__ import annotations

import numpy as np
import pytest

from raydist import data
from tests.support.numbered_source import NumberedSource

NUM_CLASSES = 10
ROWS_PER_GROUP = 100
NUM_GROUPS = 1000
BATCH_SIZE = 100


def spread(batches: data.Batches) -> float:
    """Returns the standard deviation of the classes' shares of two epochs' batches."""
    reader = batches.reader()
    per_class = len(batches.source) // NUM_CLASSES
    shares = []
    for step in range(2 * batches.steps_per_epoch):
        [array] = reader.block(step, 1, 0, BATCH_SIZE)
        shares.append(np.bincount(array.reshape(-1) // per_class, minlength=NUM_CLASSES) / BATCH_SIZE)
    return float(np.std(shares))


@pytest.mark.slow
@pytest.mark.parametrize("groups_in_windows", [12, 48, 100, 480])
def test_class_shares_spread_as_the_row_groups_in_memory_let_expect(groups_in_windows: int) -> None:
    """Measured: 2.99, 1.64, 1.34, 1.04 times a full shuffle's spread; the bounds: 3.06, 1.76, 1.41, 1.10."""
    source = NumberedSource([ROWS_PER_GROUP] * NUM_GROUPS)
    window_mb = groups_in_windows * ROWS_PER_GROUP * source.num_bytes / 1e6
    found = spread(source.batches(global_batch_size=BATCH_SIZE, seed=3, window_mb=window_mb))
    ratio = found / np.sqrt(0.09 / BATCH_SIZE)  # to a full shuffle's
    assert 0.9 < ratio < np.sqrt(1 + BATCH_SIZE / groups_in_windows)


def test_arrays_are_shuffled_fully() -> None:
    source = data.from_arrays(np.arange(ROWS_PER_GROUP * NUM_GROUPS))
    ratio = spread(source.batches(global_batch_size=BATCH_SIZE, seed=3)) / np.sqrt(0.09 / BATCH_SIZE)
    assert 0.95 < ratio < 1.05
