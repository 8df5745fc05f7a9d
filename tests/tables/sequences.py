"""The table of orders: sequences of calls on a model, in which each three calls come in each order."""

from __future__ import annotations

import functools
import itertools

CALLS = (
    *("compile", "build", "evaluate", "fit", "predict", "train_on_batch", "save_and_load", "set_weights"),
    *("ctx.fit", "ctx.evaluate", "ctx.predict"),
)
# Those that trace functions of a model, by which the loss of the first one may be taken for that of others.
# Each two of them also come first, of each loss.
TRACING = ("evaluate", "fit", "train_on_batch", "ctx.fit", "ctx.evaluate")
LOSSES = ("mse", "mean", "masked_mean")
# Ways in which one loss is compiled after another one.
RECOMPILED = (("mse", "mean"), ("sum", "masked_mean"), ("mean", "sum"))

Sequence = tuple[str, ...]


@functools.cache
def chosen() -> tuple[Sequence, ...]:
    """Returns permutations of all calls that have each three in each order."""
    left = dict.fromkeys(itertools.permutations(CALLS, 3))
    sequences: list[Sequence] = []
    while left:
        sequence = _extended(left)
        sequences += [sequence, sequence[::-1]]
        for found in (sequence, sequence[::-1]):
            for three in itertools.combinations(found, 3):
                left.pop(three, None)
    return tuple(sequences)


def _extended(left: dict[Sequence, None]) -> Sequence:
    """Returns a permutation of the calls with as many of `left` as placing one by one finds."""
    placed = next(iter(left))
    for call in (one for one in CALLS if one not in placed):
        options = [(*placed[:place], call, *placed[place:]) for place in range(len(placed) + 1)]
        placed = max(options, key=lambda one: sum(each in left for each in itertools.combinations(one, 3)))
    return placed
