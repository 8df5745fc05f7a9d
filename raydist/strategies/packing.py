"""Packs several training steps into one call where nobody looks at the steps in between.

Between two calls Keras runs Python for each step: callbacks, logs, the launch of a `tf.function`. For
a small model that takes as long as the step (TF_NOTES 8). Where the user compiled with one step per
execution and no callback watches batches, the number of steps per call is free, and every task may
choose its own: the collectives of the steps stay in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

TARGET_CALL_S = 0.1
MAX_STEPS = 256
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class Packer:
    """Chooses how many steps go into the next call: more while calls are short.

    Args:
      is_free: Whether it may choose; otherwise every call has `steps_per_execution` steps.
      limit: Steps until something has to happen between two calls, such as a checkpoint.
    """

    def __init__(
        self,
        *,
        steps_per_execution: int = 1,
        is_free: bool = False,
        limit: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size = steps_per_execution
        self._is_free = is_free
        self._limit = limit
        self._clock = clock
        self._called_at_s: float | None = None

    def next_count(self, left: int) -> int:
        """Returns the number of steps of the next call, at least 1 and at most `left`."""
        now = self._clock()
        if self._is_free and self._called_at_s is not None:
            took_s = now - self._called_at_s
            if took_s < TARGET_CALL_S / 2:
                self._size = min(self._size * 2, MAX_STEPS)
            elif took_s > TARGET_CALL_S * 2:
                self._size = max(self._size // 2, 1)
        self._called_at_s = now
        limit = self._limit() if self._limit is not None else left
        return max(1, min(self._size, left, limit))


class _Pending:
    """The packer's choices for the next `fit`, passed to the data handler that Keras makes in it."""

    is_free = False
    limit: Callable[[], int] | None = None


def set_limit(limit: Callable[[], int] | None) -> None:
    """Sets how far calls of the next `fit` may go."""
    _Pending.limit = limit


def allow(callbacks: Iterable[Any], base: type) -> None:
    """Frees the next data handler to pack, unless one of `callbacks` watches batches."""
    _Pending.is_free = not any(watches_batches(callback, base) for callback in callbacks)


def take_packer(steps_per_execution: int) -> Packer:
    """Returns the packer of a data handler; only the first one after `allow` is free."""
    packer = Packer(
        steps_per_execution=steps_per_execution,
        is_free=_Pending.is_free and steps_per_execution == 1,
        limit=_Pending.limit,
    )
    _Pending.is_free, _Pending.limit = False, None
    return packer


def watches_batches(callback: Any, base: type) -> bool:
    """Whether a callback has something to do at each batch. raydist's own ones take several at once."""
    if getattr(callback, "takes_packed_steps", False):
        return False
    return any(getattr(type(callback), hook, None) is not getattr(base, hook) for hook in _BATCH_HOOKS)
