"""Packs several training steps into one call where nobody looks at the steps in between.

Between two calls Keras runs Python for each step: callbacks, logs, the launch of a `tf.function`. For
a small model that takes as long as the step (TF_NOTES 8). Where the user compiled with one step per
execution and no callback watches batches, the number of steps per call is free, as long as all
workers choose the same: a collective gets its instance key once a call, however many steps the call
has (cross_device_utils.py, `_next_instance_key`), so unequal calls would wait for each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

TARGET_CALL_S = 0.1
MAX_STEPS = 256
# The first calls trace; by then the time of a step is known. Then it is looked at again from time to time.
FIRST_CALLS = 8
CALLS_BETWEEN = 64
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class Packer:
    """Chooses how many steps go into the next call.

    Args:
      agree: Returns the mean over all workers of a number of seconds; None where the user has chosen
        the number of steps. Called after the same calls in every worker.
      is_free: Whether this worker has nobody who watches batches. One that has keeps all others from
        packing too; a callback that only the chief has is such a case.
      limit: Steps until something has to happen between two calls, such as a checkpoint.
    """

    def __init__(
        self,
        *,
        steps_per_execution: int = 1,
        agree: Callable[[float], float] | None = None,
        is_free: bool = True,
        limit: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size = steps_per_execution
        self._agree = agree
        self._is_free = is_free
        self._limit = limit
        self._clock = clock
        self._calls_left = FIRST_CALLS
        self._fastest_step_s = float("inf")
        self._last: tuple[float, int] | None = None  # when the last call began, and its steps

    def next_count(self, left: int) -> int:
        """Returns the number of steps of the next call, at least 1 and at most `left`."""
        now = self._clock()
        if self._agree is not None and self._last is not None:
            began_at_s, count = self._last
            self._fastest_step_s = min(self._fastest_step_s, (now - began_at_s) / count)
            self._calls_left -= 1
            if self._calls_left == 0:
                self._size = self._agreed_size(self._agree)
        limit = self._limit() if self._limit is not None else left
        count = max(1, min(self._size, left, limit))
        self._last = (self._clock(), count)
        return count

    def _agreed_size(self, agree: Callable[[float], float]) -> int:
        self._calls_left = CALLS_BETWEEN
        step_s = agree(self._fastest_step_s if self._is_free else float("inf"))
        self._fastest_step_s = float("inf")
        if step_s == float("inf"):
            self._agree = None  # in every worker, so nobody asks again
            return 1
        return max(1, min(int(TARGET_CALL_S / step_s), MAX_STEPS)) if step_s > 0 else MAX_STEPS


class _Pending:
    """The packer's choices for the next `fit`, passed to the data handler that Keras makes in it."""

    is_training = False
    is_free = False
    has_sparse_gradients = False
    limit: Callable[[], int] | None = None


def set_limit(limit: Callable[[], int] | None) -> None:
    """Sets how far calls of the next `fit` may go."""
    _Pending.limit = limit


def begin(callbacks: Iterable[Any] | None, base: type, *, model: Any) -> None:
    """Announces the data handler of a `fit`; None for callbacks that cannot be looked into."""
    _Pending.is_training = True
    _Pending.is_free = callbacks is not None and not any(watches_batches(one, base) for one in callbacks)
    _Pending.has_sparse_gradients = any(_is_embedding(layer) for layer in model._flatten_layers())


def take_packer(
    steps_per_execution: int, agree: Callable[[float], float], *, is_batch_static: bool
) -> Packer:
    """Returns the packer of a data handler; only the first one after `begin` chooses.

    Args:
      is_batch_static: Whether all batches are known to have one size.
    """
    # Sparse gradients are gathered, as many rows as there are examples, and TensorFlow keeps the shape
    # that a collective had first in a call: "Shape mismatch in the collective instance".
    may_vary = _Pending.has_sparse_gradients and not is_batch_static
    packer = Packer(
        steps_per_execution=steps_per_execution,
        agree=agree if _Pending.is_training and steps_per_execution == 1 else None,
        is_free=_Pending.is_free and not may_vary,
        limit=_Pending.limit,
    )
    _Pending.is_training, _Pending.is_free, _Pending.limit = False, False, None
    _Pending.has_sparse_gradients = False
    return packer


def _is_embedding(layer: Any) -> bool:
    return any(base.__name__ == "Embedding" for base in type(layer).__mro__)


def watches_batches(callback: Any, base: type) -> bool:
    """Whether a callback has something to do at each batch. raydist's own ones take several at once."""
    if getattr(callback, "takes_packed_steps", False):
        return False
    return any(getattr(type(callback), hook, None) is not getattr(base, hook) for hook in _BATCH_HOOKS)
