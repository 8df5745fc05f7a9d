"""In how many lanes a recipe is read, for tests that would be about less if it were one."""

from __future__ import annotations

from raydist.data.batches import Batches
from raydist.data.order.windows import WindowedOrder


def num_lanes(recipe: Batches) -> int:
    """Returns the lanes of a recipe of a source in groups."""
    source = recipe.source
    assert source.group_sizes is not None
    window_rows = max(1, recipe.window_bytes // source.num_bytes)
    return WindowedOrder(
        source.group_sizes, recipe.steps, seed=recipe.seed, window_rows=window_rows
    ).num_lanes
