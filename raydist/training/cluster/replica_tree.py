"""The fixed tree by which values of a run's replicas are added, whichever worker has computed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from raydist.data.order.steps import cut

T = TypeVar("T")


def replicas_of(worker: int, *, num_workers: int, num_replicas: int, shares: Sequence[int] = ()) -> range:
    """Returns the replicas that a worker computes: by shares, else as many as others, or one more."""
    return range(*cut(num_replicas, worker, num_workers, shares))


def roots_of(own: range, *, num_replicas: int) -> list[range]:
    """Returns the largest subtrees that hold only replicas of `own`, in order; together they hold all."""
    return _roots(own, range(num_replicas))


def _roots(own: range, node: range) -> list[range]:
    if own.start <= node.start and node.stop <= own.stop:
        return [node]
    if node.stop <= own.start or own.stop <= node.start:
        return []
    return [root for half in _halves(node) for root in _roots(own, half)]


def summed(node: range, known: Mapping[range, T], add: Callable[[T, T], T]) -> T:
    """Returns the sum over a subtree's replicas.

    Args:
      known: Sums of subtrees, which together hold all replicas of `node`.
      add: Adds two values.
    """
    if node in known:
        return known[node]
    left, right = (summed(half, known, add) for half in _halves(node))
    return add(left, right)


def of_replicas(own: range, values: Sequence[T]) -> dict[range, T]:
    """Returns each replica's value by the leaf that it is."""
    return {range(one, one + 1): value for one, value in zip(own, values, strict=True)}


def _halves(node: range) -> tuple[range, range]:
    middle = node.start + (len(node) + 1) // 2
    return range(node.start, middle), range(middle, node.stop)
