"""Which shares of each global batch the workers of a strategy take, where they are not equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.data.order.steps import rows_of_worker
from raydist.training.cluster.collectives import is_alone
from raydist.training.cluster.virtual_strategy import is_virtual


class _Settings:
    shares: tuple[int, ...] = ()


def configure(shares: Sequence[int]) -> None:
    """Sets what each of the run's workers takes of a global batch; empty where all take as much."""
    _Settings.shares = tuple(shares) if len(set(shares)) > 1 else ()


def of(strategy: tf.distribute.Strategy) -> tuple[int, ...]:
    """Returns the shares of a strategy's workers; empty where they are equal.

    Virtual replicas have equal parts of a batch, and workers have unequal numbers of them.
    """
    if not _Settings.shares or is_alone(strategy) or is_virtual(strategy):
        return ()
    assert tf_private.num_workers_of(strategy) == len(_Settings.shares)
    return _Settings.shares


def note_on(strategy: tf.distribute.Strategy) -> str | None:
    """Returns the sentence on what the workers take of each batch; None where it is as much."""
    if not (shares := of(strategy)):
        return None
    parts = ", ".join(f"{share / sum(shares):.0%}" for share in shares)
    return f"worker/0 to worker/{len(shares) - 1} take {parts} of each batch (--shares)"


def rows_of(num_global: Any, worker: int, shares: Sequence[int]) -> tuple[Any, Any]:
    """Returns what `rows_of_worker` does, for an int or an integer tensor of any type."""
    if isinstance(num_global, int):
        return rows_of_worker(num_global, worker, shares)
    found = rows_of_worker(tf.cast(num_global, tf.int64), worker, shares)
    first, size = (tf.cast(one, num_global.dtype) for one in found)
    return first, size
