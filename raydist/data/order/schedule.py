"""Which of several sources each example of a mixture comes from, in a fixed order that follows their weights.

Of the first n examples a source has n times its weight, rounded; so any stretch has the sources in their
shares, and where each of them is at a position is found without what comes before it. The sources after the
first one share in the same way what it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

# The sum of all weights, at most: times a position of 2**40 it is far below 2**63.
_MAX_SUM = 1 << 22


@dataclass(frozen=True)
class Schedule:
    """The order of sources in one epoch, which is the same in every epoch.

    Attributes:
      sizes: The number of examples of each source.
      weights: Of the sources, as ints.
      repeats: Whether an epoch ends when every source was read once, and the others repeat until then;
        otherwise it ends where an example of a source is next that was read once.
    """

    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    repeats: bool

    @cached_property
    def num_examples(self) -> int:
        """The length of an epoch."""
        if self.repeats:
            return max(self._place_of(source, size - 1) + 1 for source, size in enumerate(self.sizes))
        return min(self._place_of(source, size) for source, size in enumerate(self.sizes))

    @cached_property
    def num_passes(self) -> tuple[int, ...]:
        """How often each source is begun in an epoch."""
        counts = self._counts(np.array([self.num_examples])).ravel().tolist()
        return tuple(-(-count // size) for count, size in zip(counts, self.sizes, strict=True))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each position of an epoch, and how many of its examples come before.

        Args:
          positions: int64, of any shape, each in `range(num_examples)`.
        """
        counts = self._counts(positions)
        sources = (self._counts(positions + 1) - counts).argmax(axis=0)
        return sources, np.take_along_axis(counts, sources[None], axis=0)[0]

    def _counts(self, positions: np.ndarray) -> np.ndarray:
        """Returns how many examples of each source, `[sources, ...]`, come before each position."""
        rest, found = positions, []
        for source, weight in enumerate(self.weights[:-1]):
            whole = sum(self.weights[source:])
            found.append((rest * weight + whole // 2) // whole)
            rest = rest - found[-1]
        return np.stack([*found, rest])

    def _place_of(self, source: int, rank: int) -> int:
        """Returns the position of a source's example that comes after `rank` others of it."""
        first = 0
        # Each rounding before it moves it by one example at most.
        end = (rank + 1 + len(self.sizes)) * sum(self.weights) // self.weights[source] + len(self.sizes)
        while first < end:
            middle = (first + end) // 2
            if self._counts(np.array([middle + 1]))[source, 0] <= rank:
                first = middle + 1
            else:
                end = middle
        return first


def int_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Returns the weights as small ints in the same ratios; of very fine ones rounded, to 1 at least."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    factor = math.lcm(*(one.denominator for one in exact))
    found = [int(one * factor) for one in exact]
    whole = sum(found)
    if whole // math.gcd(*found) <= _MAX_SUM:
        return tuple(one // math.gcd(*found) for one in found)
    return tuple(max(1, one * _MAX_SUM // whole) for one in found)
